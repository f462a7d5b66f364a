"""Rows that decode in turn, so that each stage of a pipeline has a plan."""

from __future__ import annotations

from collections import deque
from itertools import pairwise

import numpy as np

from pageant.actors.scheduler.waves import Waves
from tests.actors.scheduler.scene import Scene


def play(scene):
    """Answer plans one by one, oldest first. Return them, and how many were under way with each."""
    under_way, found = deque(), []
    while True:
        while scene.core.planner.exchange is not None:
            _, plan = scene.assign()
            if plan is not None:
                under_way.append(plan)
                found.append((plan, len(under_way)))
        if not under_way:
            return found
        scene.compute(under_way.popleft())


def test_stages_have_plans_of_different_rows_at_the_same_time():
    scene = Scene(ahead=True, num_blocks=64).ready(stages=2)
    for name in "abcd":
        scene.submit(name, [1, 2, 3], max_tokens=12)
    found = play(scene)
    assert set(scene.out("nobody") or scene.ends) == set("abcd")
    assert {end.reason for end in scene.ends.values()} == {"length"}
    decodes = [(plan, depth) for plan, depth in found if not plan.new and len(plan.rows) == 2]
    assert len(decodes) >= 20, "half of the rows in each"
    steady = decodes[2:-6]
    for (one, _), (next_one, depth) in pairwise(steady):
        assert not {*one.rows.tolist()} & {*next_one.rows.tolist()}, "in turn"
        assert depth == 3, "one on each stage, and one that is next"


def test_one_stage_has_one_wave():
    scene = Scene(ahead=True, num_blocks=64).ready()
    for name in "abcd":
        scene.submit(name, [1, 2, 3], max_tokens=6)
    assert [len(plan.rows) for plan, _ in play(scene)].count(4) >= 4


def test_chunks_of_a_prompt_follow_one_another_through_the_stages():
    scene = Scene(ahead=True, num_blocks=64, budget=4, longest=32).ready(stages=3)
    scene.submit("a", range(24), max_tokens=1)
    found = play(scene)
    assert [plan.num_tokens.tolist() for plan, _ in found] == [[4]] * 6
    assert max(depth for _, depth in found) == 4


def test_waves_that_have_become_uneven_are_evened_out():
    waves = Waves(8, 2)
    for row in range(8):
        waves.admit(row, np.arange(row, dtype=np.int32))
    pending = np.zeros(8, np.int32)
    left = np.array([0, 2, 4, 6], np.int32)  # all of the other wave have ended
    decoding = np.ones(4, np.bool_)
    first = waves.are_in_turn(left, decoding, pending)
    waves.planned()
    second = waves.are_in_turn(left, decoding, pending)
    assert first.sum() == second.sum() == 2 and not (first & second).any()


def test_a_row_alone_is_at_most_two_tokens_ahead():
    waves, row = Waves(4, 3), np.array([1], np.int32)
    waves.admit(1, np.array([], np.int32))
    pending = np.zeros(4, np.int32)
    for expected in (True, True, False):
        assert waves.are_in_turn(row, np.array([True]), pending).tolist() == [expected]
        waves.planned()
        pending[1] += 1
