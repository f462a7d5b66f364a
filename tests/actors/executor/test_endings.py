"""Rows of which nothing more need be computed."""

from __future__ import annotations

import numpy as np
import pytest

from pageant.actors.executor.endings import Endings
from pageant.protocol.arrays import int32
from pageant.protocol.sampling import SamplingParams
from pageant.protocol.stepping import NewSequence

END, STOP = 2, 9


def endings(**params_by_row):
    """Rows whose prompts have three tokens."""
    found = Endings((END,))
    for row, params in enumerate(params_by_row.values()):
        sampling = SamplingParams(temperature=0.0, **params)
        blocks, prompt = int32([1]), int32([4, 5, 6])
        found.add(NewSequence(row=row, token_ids=prompt, num_prompt_tokens=3, blocks=blocks, params=sampling))
    return found


def ended(endings, position, *token_ids):
    rows = np.arange(len(token_ids), dtype=np.int32)
    return endings.all_ended(rows, np.full(len(rows), position), np.array(token_ids))


def test_all_have_ended_when_the_last_of_them_has():
    rows = endings(a={}, b={}, c={})
    assert not ended(rows, 3, 7, END, 8)
    assert not ended(rows, 4, END, 7, 8)
    assert ended(rows, 5, 7, 7, END)
    rows.forget()
    assert not ended(rows, 6, 7, 7, END)


@pytest.mark.parametrize(
    ("params", "position", "token", "ends"),
    [
        ({}, 3, END, True),
        ({}, 3, STOP, False),
        ({"ignore_eos": True}, 3, END, False),
        ({"stop_token_ids": (STOP,), "ignore_eos": True}, 3, STOP, True),
        ({"min_tokens": 2}, 3, END, False),
        ({"min_tokens": 2}, 4, END, True),
    ],
)
def test_what_ends_a_row_is_what_its_request_says(params, position, token, ends):
    assert ended(endings(a=params), position, token) == ends


def test_who_takes_a_row_is_asked_for_its_own_ends():
    rows = endings(a={})
    sampling = SamplingParams(ignore_eos=True)
    sequence = NewSequence(
        row=0, token_ids=int32([1]), num_prompt_tokens=1, blocks=int32([0]), params=sampling
    )
    rows.add(sequence)
    assert not ended(rows, 3, END)
