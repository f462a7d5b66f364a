"""Rotary positions of prompts with images, cut into steps."""

import numpy as np
import pytest

from pageant.actors.executor.batch.rotary import RotaryRows
from pageant.protocol.arrays import int32
from pageant.protocol.embedding import EmbeddedRows
from pageant.protocol.sampling import SamplingParams
from pageant.protocol.stepping import NewSequence

# Two tokens of text, an image of 1 x 2 x 3, and two more: three tokens fewer by positions than by tokens.
ROTARY = np.array(
    [
        [0, 1, 2, 2, 2, 2, 2, 2, 5, 6],
        [0, 1, 2, 2, 2, 3, 3, 3, 5, 6],
        [0, 1, 2, 3, 4, 2, 3, 4, 5, 6],
    ],
    np.int32,
)
LATER = np.tile(np.arange(7, 12), (3, 1))  # tokens 10 to 14


def sequence(row, rotary):
    embedded = None
    if rotary is not None:
        embedded = EmbeddedRows(
            start=0, rows=np.zeros((6, 4), np.float32), places=int32(range(2, 8)), rotary=rotary
        )
    return NewSequence(
        row=row,
        token_ids=int32(range(10)),
        num_prompt_tokens=10,
        blocks=int32(),
        params=SamplingParams(),
        embedded=embedded,
    )


@pytest.mark.parametrize("chunk", [1, 3, 7, 15])
def test_positions_are_those_of_the_prompt_and_go_on_after_it(chunk):
    rows = RotaryRows()
    rows.add(sequence(3, ROTARY))
    rows.add(sequence(5, None))
    found = []
    for start in range(0, 15, chunk):
        count = min(chunk, 15 - start)
        positions = np.concatenate([[40], np.arange(start, start + count)])
        step = rows.of_step(int32([5, 3]), int32([1, count]), positions)
        assert (step[:, 0] == 40).all(), "a row of texts keeps its own"
        found.append(step[:, 1:])
    assert (np.concatenate(found, axis=1) == np.concatenate([ROTARY, LATER], axis=1)).all()


def test_steps_without_images_have_none_and_freed_rows_are_forgotten():
    rows = RotaryRows()
    rows.add(sequence(3, ROTARY))
    assert rows.of_step(int32([5]), int32([2]), np.arange(2)) is None
    rows.add(sequence(3, None))
    assert rows.of_step(int32([3]), int32([2]), np.arange(2)) is None
    rows.add(sequence(3, ROTARY))
    rows.free([3])
    assert rows.of_step(int32([3]), int32([2]), np.arange(2)) is None
