"""How many drafts rows get: many where they are right and cheap, none where they are wrong or dear."""

from __future__ import annotations

import numpy as np
import pytest

from pageant.actors.scheduler.appetite import Appetite, StepTime
from pageant.protocol.arrays import int32
from pageant.protocol.drafting import Speculation

SETTINGS = Speculation(method="ngram", tokens=4)


def appetite(fixed: float, each: float, rows: int = 8) -> Appetite:
    """One that has learned what a step takes."""
    found = Appetite(SETTINGS, rows)
    for tokens in (1, 2, 5, 9, 3, 7) * 5:
        found.stepped(tokens, fixed + each * tokens)
    return found


def verify(found: Appetite, row: int, right: int, of: int = 4, times: int = 20) -> None:
    for _ in range(times):
        found.verified(int32([row]), int32([of]), int32([right]))


def test_a_steps_time_is_a_line_of_its_tokens():
    time = StepTime()
    for tokens in (1, 4, 16, 2, 8):
        time.add(tokens, 0.02 + 0.003 * tokens)
    assert time.line() == pytest.approx((0.02, 0.003))


def test_steps_of_one_size_tell_little_of_what_a_token_costs():
    time = StepTime()
    assert time.line()[1] > 0
    for _ in range(10):
        time.add(4, 0.1)
    fixed, each = time.line()
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


def test_who_gets_none_is_tried_again_ever_more_seldom():
    found = appetite(fixed=0.02, each=0.0005)
    verify(found, 0, right=0)
    asked = []
    for step in range(600):
        if found.wanted(int32([0]))[0]:
            asked.append(step)
            verify(found, 0, right=0, of=1, times=1)
    gaps = np.diff(asked)
    assert len(asked) >= 4 and list(gaps) == sorted(gaps) and gaps[-1] > 2 * gaps[0]


def test_who_is_right_again_rests_no_longer_than_at_first():
    found = appetite(fixed=0.02, each=0.0005)
    verify(found, 0, right=0, times=60)
    while found.wanted(int32([0])).tolist() != [1]:
        pass
    verify(found, 0, right=1, of=1, times=1)
    assert found.wanted(int32([0]))[0] >= 1, "one draft that is right makes up for many"


def test_a_trial_lasts_until_it_is_verified_or_there_was_nothing_to_verify():
    found = appetite(fixed=0.02, each=0.0005)
    verify(found, 0, right=0, times=60)
    while found.wanted(int32([0])).tolist() != [1]:
        pass
    assert found.wanted(int32([0])).tolist() == [1], "it was planned ahead, and is asked again"
    found.missed(0)
    assert found.wanted(int32([0])).tolist() == [0]


def test_a_row_begins_as_the_others_fare():
    found = appetite(fixed=0.02, each=0.0005)
    verify(found, 0, right=0, of=4, times=400)
    found.admit(1)
    assert found.wanted(int32([1])).tolist() == [0]
    verify(found, 0, right=4, of=4, times=400)
    found.admit(1)
    assert found.wanted(int32([1])).tolist() == [4]


def test_what_is_not_adaptive_always_wants_all():
    found = Appetite(Speculation(method="ngram", tokens=3, adaptive=False), 2)
    verify(found, 0, right=0)
    assert found.wanted(int32([0, 1])).tolist() == [3, 3]
