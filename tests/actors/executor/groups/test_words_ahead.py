"""Tokens of launches on their way to the first stage of a pipeline."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from pageant.actors.executor.groups.words_ahead import WordsAhead, hear_tokens
from pageant.kernels.collectives.base import GroupBroken
from pageant.kernels.collectives.local import local_group


def work_of(number, rows, token_ids, unknown=(), unknown_rows=()):
    """A launch that draws for rows, of tokens of which some are drawn by rows before."""
    step = SimpleNamespace(
        rows=np.array(rows),
        token_ids=np.array(token_ids),
        unknown=np.array(unknown, np.int64),
        unknown_rows=np.array(unknown_rows, np.int64),
    )
    return SimpleNamespace(number=number, steps=(step,))


@pytest.fixture
def words():
    """The leader's words, the operations of the first stage, and what rows drew last."""
    leader, first_stage = local_group(2)
    last_drawn = np.zeros(8, np.int64)
    return WordsAhead(leader, range(1, 2), last_drawn), first_stage, last_drawn


def test_tokens_that_are_known_go_with_the_order(words):
    ahead, _, last_drawn = words
    assert ahead.ordered(work_of(1, [0, 1], [5, 6])).tolist() == [5, 6]
    assert ahead.ordered(work_of(2, [2], [7])).tolist() == [7], "other rows than those of the launch before"
    last_drawn[0] = 40
    ahead.over(1)
    assert ahead.ordered(work_of(3, [0, 3], [-1, 8], [0], [0])).tolist() == [40, 8]


def test_tokens_that_a_launch_before_draws_are_sent_when_it_is_over(words):
    ahead, first_stage, last_drawn = words
    ahead.ordered(work_of(1, [0], [5]))
    ahead.ordered(work_of(2, [1], [6]))
    assert ahead.ordered(work_of(3, [0], [-1], [0], [0])) is None
    assert ahead.ordered(work_of(4, [1], [-1], [0], [1])) is None
    last_drawn[0] = 41
    ahead.over(1)
    assert hear_tokens(first_stage, 3, 1).tolist() == [41]
    last_drawn[1] = 42
    ahead.over(2)
    assert hear_tokens(first_stage, 4, 1).tolist() == [42]


def test_a_launch_that_awaits_a_later_one_waits_for_that(words):
    """The same row is drawn by two launches: the last of them counts."""
    ahead, first_stage, last_drawn = words
    ahead.ordered(work_of(1, [0], [5]))
    ahead.ordered(work_of(2, [0], [-1], [0], [0]))
    ahead.ordered(work_of(3, [0], [-1], [0], [0]))
    last_drawn[0] = 50
    ahead.over(1)
    assert hear_tokens(first_stage, 2, 1).tolist() == [50]
    last_drawn[0] = 51
    ahead.over(2)
    assert hear_tokens(first_stage, 3, 1).tolist() == [51]


def test_tokens_of_another_launch_break_the_group(words):
    ahead, first_stage, _ = words
    ahead.ordered(work_of(1, [0], [5]))
    ahead.ordered(work_of(2, [0], [-1], [0], [0]))
    ahead.over(1)
    with pytest.raises(GroupBroken, match="the tokens of launch 2; those of 3 were expected"):
        hear_tokens(first_stage, 3, 1)
