"""Budgets of drafts: many where they are right and cheap, none where they are wrong or dear."""

from __future__ import annotations

import numpy as np
import pytest

from pageant.actors.runtime.step_time import StepTime
from pageant.actors.scheduler.draft_budget import DraftBudget, step_line
from pageant.protocol.arrays import int32
from pageant.protocol.drafting import Speculation

SETTINGS = Speculation(method="ngram", tokens=4)


def appetite(fixed: float, each: float, rows: int = 8) -> DraftBudget:
    """Return a budget that has learned what a step takes."""
    found = DraftBudget(SETTINGS, rows)
    for tokens in (1, 2, 5, 9, 3, 7) * 5:
        found.stepped(tokens, fixed + each * tokens)
    return found


def verify(found: DraftBudget, row: int, right: int, of: int = 4, times: int = 20) -> None:
    for _ in range(times):
        found.verified(int32([row]), int32([of]), int32([right]))


def test_a_steps_time_is_a_line_of_its_tokens():
    time = StepTime(0.98)
    for tokens in (1, 4, 16, 2, 8):
        time.add(tokens, 0.02 + 0.003 * tokens)
    assert step_line(time) == pytest.approx((0.02, 0.003))


def test_steps_of_one_size_tell_little_of_what_a_token_costs():
    time = StepTime(0.98)
    assert step_line(time)[1] > 0
    for _ in range(10):
        time.add(4, 0.1)
    fixed, each = step_line(time)
    assert fixed + 4 * each == pytest.approx(0.1) and 0 < each < 0.01


def test_who_is_always_right_gets_all_and_who_never_is_gets_none():
    found = appetite(fixed=0.02, each=0.0005)
    verify(found, 0, right=4)
    verify(found, 1, right=0)
    assert found.wanted(int32([0, 1])).tolist() == [4, 0]


def test_where_a_draft_costs_as_much_as_a_token_of_its_own_there_are_none():
    found = appetite(fixed=0.0001, each=0.01)
    verify(found, 0, right=4)
    assert found.wanted(int32([0])).tolist() == [0]


def test_the_more_a_draft_costs_the_fewer_there_are():
    counts = []
    for each in (0.0002, 0.002, 0.006):
        found = appetite(fixed=0.01, each=each)
        verify(found, 0, right=2, of=4, times=60)
        counts.append(int(found.wanted(int32([0]))[0]))
    assert counts == sorted(counts, reverse=True) and counts[0] > counts[-1]


def turn(found: DraftBudget, row: int = 0) -> tuple[int, bool]:
    """Return what a row gets in a step, and whether it is tried."""
    found.stepped(1, 0.02)
    (count,) = found.wanted(int32([row]))
    return int(count), not count and bool(found.due(int32([row]))[0])


def unprofitable(rows: int = 8) -> DraftBudget:
    """Return a budget whose first row is always wrong."""
    found = appetite(fixed=0.02, each=0.0005, rows=rows)
    verify(found, 0, right=0, times=60)
    return found


def test_who_gets_none_is_tried_ever_more_seldom():
    found = unprofitable()
    tried = []
    for step in range(600):
        count, is_tried = turn(found)
        assert not count
        if is_tried:
            tried.append(step)
            found.tried(int32([0]), np.array([False]))
    gaps = np.diff(tried)
    assert len(tried) >= 4 and list(gaps) == sorted(gaps) and gaps[-1] > 2 * gaps[0]


def test_one_guess_that_was_right_makes_up_for_many():
    found = unprofitable()
    while not turn(found)[1]:
        pass
    found.tried(int32([0]), np.array([True]))
    assert turn(found)[0] >= 1
    verify(found, 0, right=0, times=60)
    gap = next(step for step in range(600) if turn(found)[1])
    assert gap <= 8, "it rests no longer than at first"


def test_trials_wait_until_their_time_is_earned():
    found = unprofitable()
    found.tried(int32([0]), np.array([True]))  # it will rest as little as can be
    verify(found, 0, right=0, times=60)
    found.spent(2 * 0.02)  # two whole steps, for which two hundred must go by
    waited = next(step for step in range(600) if turn(found)[1])
    assert 150 <= waited <= 210


def test_rows_wait_for_others_drafts_where_steps_are_long():
    long, short = appetite(fixed=0.02, each=0.0005), appetite(fixed=0.0001, each=0.00001)
    for found in (long, short):
        found.drafted(0.001)
    assert long.waits(16, 16) and long.waits(16, 2)
    assert not short.waits(16, 2), "each step would begin later than it takes"


def test_a_row_begins_as_the_others_fare():
    found = appetite(fixed=0.02, each=0.0005)
    verify(found, 0, right=0, of=4, times=400)
    found.admit(1)
    assert found.wanted(int32([1])).tolist() == [0]
    verify(found, 0, right=4, of=4, times=400)
    found.admit(1)
    assert found.wanted(int32([1])).tolist() == [4]


def test_what_is_not_adaptive_always_wants_all():
    found = DraftBudget(Speculation(method="ngram", tokens=3, adaptive=False), 2)
    verify(found, 0, right=0)
    assert found.wanted(int32([0, 1])).tolist() == [3, 3]
