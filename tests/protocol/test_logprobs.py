"""Columns of log-probabilities: taken apart by row, cut, and joined again."""

from __future__ import annotations

import random

import numpy as np
import pytest

from pageant.protocol.logprobs import RowLogprobs, join_rows, split_rows


def piece(rng, length):
    counts = [rng.randrange(4) for _ in range(length)]
    numbers = iter(range(1000))
    return RowLogprobs(
        token_ids=np.array([next(numbers) for _ in counts], np.int32),
        logprobs=np.array([next(numbers) for _ in counts], np.float32),
        ranks=np.array([next(numbers) for _ in counts], np.int32),
        counts=np.array(counts, np.int32),
        top_ids=np.array([next(numbers) for _ in range(sum(counts))], np.int32),
        top=np.array([next(numbers) for _ in range(sum(counts))], np.float32),
    )


def by_token(one):
    """A piece as plain tuples, a token each."""
    first, found = 0, []
    for index, count in enumerate(one.counts.tolist()):
        top = list(zip(one.top_ids.tolist(), one.top.tolist(), strict=True))[first : first + count]
        found.append((int(one.token_ids[index]), float(one.logprobs[index]), int(one.ranks[index]), top))
        first += count
    return found


@pytest.mark.parametrize("seed", range(20))
def test_what_is_joined_is_split_into_the_same_rows(seed):
    rng = random.Random(seed)
    rows = sorted(rng.sample(range(9), 4))
    pieces = [(row, piece(rng, rng.randrange(1, 4))) for row in rows for _ in range(rng.randrange(1, 3))]
    right = {}
    for row, one in pieces:
        right.setdefault(row, []).extend(by_token(one))
    assert {row: by_token(one) for row, one in split_rows(join_rows(pieces)).items()} == right


@pytest.mark.parametrize("seed", range(10))
def test_a_part_is_that_of_its_tokens(seed):
    one = piece(random.Random(seed), 5)
    for first in range(6):
        for last in (*range(first, 6), None):
            assert by_token(one.part(first, last)) == by_token(one)[first:last]


def test_nothing_is_joined_to_nothing():
    assert join_rows([]) is None and split_rows(None) == {}
