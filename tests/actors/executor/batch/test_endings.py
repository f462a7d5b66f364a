"""Rows of which nothing more need be computed."""

from __future__ import annotations

import numpy as np
import pytest

from pageant.actors.executor.batch.endings import EndedRows, EndTokens
from pageant.protocol.arrays import int32
from pageant.protocol.sampling import SamplingParams
from pageant.protocol.stepping import NewSequence

END, STOP = 2, 9


class Rows:
    """End tokens of rows, and which of these have ended."""

    def __init__(self) -> None:
        self.tokens, self.ended = EndTokens((END,)), EndedRows()

    def add(self, row, prompt=(4, 5, 6), **params):
        sampling = SamplingParams(temperature=0.0, **params)
        self.tokens.add(
            NewSequence(
                row=row,
                token_ids=int32(prompt),
                num_prompt_tokens=len(prompt),
                blocks=int32([1]),
                params=sampling,
            )
        )


def endings(**params_by_row):
    """Rows whose prompts have three tokens."""
    found = Rows()
    for row, params in enumerate(params_by_row.values()):
        found.add(row, **params)
    return found


def ended(found, position, *token_ids):
    rows = np.arange(len(token_ids), dtype=np.int32)
    return draw(found, found.tokens.of(rows), position, *token_ids)


def draw(found, ends, position, *token_ids):
    rows = np.arange(len(token_ids), dtype=np.int32)
    return found.ended.all_ended(rows, ends, np.full(len(rows), position), np.array(token_ids))


def test_all_have_ended_when_the_last_of_them_has():
    rows = endings(a={}, b={}, c={})
    assert not ended(rows, 3, 7, END, 8)
    assert not ended(rows, 4, END, 7, 8)
    assert ended(rows, 5, 7, 7, END)
    rows.ended.clear()
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
    rows.add(0, prompt=[1], ignore_eos=True)
    assert not ended(rows, 3, END)


def test_the_ends_of_a_plan_stay_those_of_its_sequences():
    rows = endings(a={})
    before = rows.tokens.of(int32([0]))
    rows.add(0, prompt=[1], ignore_eos=True)
    assert draw(rows, before, 3, END)
