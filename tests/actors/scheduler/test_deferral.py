"""Rows whose tokens come late: when they go on, and when the block manager may know."""

from __future__ import annotations

import pytest

from pageant.actors.scheduler.deferral import Deferrals
from pageant.actors.scheduler.plans import SampledTokens
from pageant.protocol.arrays import int32, int64

TOKEN = SampledTokens(int64([7]), int32([99]))
ROW, PLAN = 2, 5


class Rows:
    """The running rows, as deferrals see them."""

    def __init__(self):
        self.stalled: set[int] = set()
        self.named: set[int] = set()

    def stall(self, row):
        self.stalled.add(row)

    def arrived(self, row):
        assert row in self.stalled

    def go_on(self, row):
        self.stalled.discard(row)

    def is_stalled(self, row):
        return row in self.stalled

    def is_row_named(self, row):
        return row in self.named


@pytest.fixture
def rows():
    return Rows()


@pytest.fixture
def deferrals(rows):
    deferrals = Deferrals(rows)
    deferrals.defer(ROW, PLAN)
    return deferrals


def test_a_row_stalls_until_its_token_is_there_and_no_step_names_it(deferrals, rows):
    rows.named = {ROW}
    assert deferrals.awaits(ROW, PLAN) and not deferrals.awaits(ROW, PLAN + 1)
    deferrals.settle()
    assert rows.stalled == {ROW}
    deferrals.arrived(ROW, TOKEN)
    deferrals.settle()
    assert rows.stalled == {ROW} and not deferrals.awaits(ROW, PLAN)
    rows.named = set()
    deferrals.settle()
    assert not rows.stalled


def test_the_token_is_told_with_the_step_that_computes_it(deferrals, rows):
    deferrals.arrived(ROW, TOKEN)
    assert deferrals.planned(int32([ROW])) == []  # it stalls: this is of a step that was planned before
    deferrals.settle()
    assert deferrals.planned(int32([0, 1])) == []
    assert deferrals.planned(int32([1, ROW])) == [TOKEN]
    assert deferrals.planned(int32([ROW])) == []


def test_the_token_is_told_when_a_step_that_was_planned_ahead_has_computed_it(deferrals, rows):
    assert deferrals.computed(int32([ROW])) == []
    deferrals.arrived(ROW, TOKEN)
    assert deferrals.computed(int32([0, ROW])) == [TOKEN]
    assert not rows.stalled
    deferrals.defer(ROW, PLAN + 1)  # and again
    assert deferrals.awaits(ROW, PLAN + 1)


def test_a_row_that_is_given_up_awaits_nothing(deferrals):
    deferrals.forget(ROW)
    deferrals.forget(ROW)
    assert not deferrals.awaits(ROW, PLAN)
