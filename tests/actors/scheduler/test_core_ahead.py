"""The scheduler's core, event by event: steps planned while others are computed, and tokens that come late."""

from __future__ import annotations

import pytest

from pageant.actors.scheduler.core import BLOCKS, EXECUTOR
from tests.actors.scheduler.scene import END, Scene


@pytest.mark.parametrize(("seconds", "ahead"), [(0.004, 2), (0.006, 1)])
def test_short_steps_are_planned_two_ahead(seconds, ahead):
    scene = Scene(ahead=True, short_step_seconds=0.005).ready()
    scene.submit("a", [5, 6, 7], max_tokens=9)
    _, first = scene.assign()
    _, second = scene.assign()
    assert not scene.out(BLOCKS), "nobody knows how long steps are"
    scene.compute(first, seconds=seconds)
    plans = [second, *scene.plans()]
    assert [plan.starts.tolist() for plan in plans] == [[3], [4], [5]][: 1 + ahead]
    scene.run_on(plans)
    assert scene.ends["a"].num_output_tokens == 9
    assert scene.core.counters.rows_wasted == 0, "an end by length is known before"


def test_what_was_void_while_more_of_its_row_was_asked_for_is_computed_again():
    scene = Scene(longest=40, ahead=True, short_step_seconds=1.0).ready(max_model_len=40)
    scene.submit("a", [5, 6, 7], max_tokens=9)
    _, first = scene.assign()
    _, second = scene.assign()
    scene.compute(first)
    _, third = scene.assign()
    (asked,) = scene.out(BLOCKS)
    scene.compute(second, deferred=(0,))
    scene.compute(third, void=(0,))
    scene.core.assigned(scene.allocation.assign(asked))
    fourth = scene.plan()
    scene.late(second, 0)
    assert not scene.out(BLOCKS), "a step names the row"
    scene.compute(fourth, void=(0,))
    _, plan = scene.assign()
    assert plan.starts.tolist() == third.starts.tolist()
    scene.run_on([plan])
    assert scene.ends["a"].num_output_tokens == len(scene.tokens["a"]) == 9


def test_a_row_whose_late_token_has_come_does_not_wait_for_anothers():
    scene = Scene(num_blocks=10, longest=40, budget=64, ahead=True).ready(max_model_len=40)
    scene.submit("a", range(1, 17), max_tokens=16)
    scene.submit("b", range(21, 37), max_tokens=16)
    _, first = scene.assign()
    scene.submit("waits", range(41, 61), max_tokens=16)
    _, second = scene.assign()
    scene.compute(first)
    _, third = scene.assign()
    scene.compute(second, deferred=(0, 1))
    while asked := scene.out(BLOCKS):
        scene.core.assigned(scene.allocation.assign(asked[0]))
    scene.compute(third, void=(0, 1))
    while asked := scene.out(BLOCKS):
        scene.core.assigned(scene.allocation.assign(asked[0]))
    assert not scene.told[EXECUTOR], "all that run wait for their tokens, and there is no room for more"
    scene.late(second, 0)
    _, plan = scene.assign()
    assert plan.rows.tolist() == [0]


def test_a_row_whose_late_token_came_while_its_growth_was_asked_for_goes_on_if_that_is_refused():
    scene = Scene(num_blocks=10, longest=40, budget=64, ahead=True).ready(max_model_len=40)
    scene.submit("a", range(1, 18), max_tokens=16)
    _, plan = scene.assign()
    scene.submit("b", range(21, 40), max_tokens=16)
    plans = [plan]
    while plans[-1].starts.tolist() != [19, 19]:
        plans += [plan for _, plan in [scene.assign()] if plan is not None]
        if len(plans) > 1 and plans[-1].starts.tolist() != [19, 19]:
            scene.compute(plans[-2])
    scene.compute(plans[-2])
    (asked,) = scene.out(BLOCKS)
    scene.compute(plans[-1], deferred=(0,))
    scene.late(plans[-1], 0)
    scene.core.assigned(scene.allocation.assign(asked))
    scene.rest()
    assert {name: len(tokens) for name, tokens in scene.tokens.items()} == {"a": 16, "b": 16}


def test_a_row_that_failed_ends_though_its_mask_was_late():
    scene = Scene().ready()
    scene.submit("a", range(3), max_tokens=4)
    _, plan = scene.assign()
    scene.compute(plan, failed={0: "its processor raised"}, deferred=(0,))
    ended = scene.rest()["a"]
    assert (ended.reason, ended.message) == ("error", "its processor raised")


def test_an_abort_while_assigning_still_computes_what_was_granted():
    scene = Scene().ready()
    scene.submit("a", range(8), max_tokens=2)
    (asked,) = scene.out(BLOCKS)
    scene.abort("a")
    assert scene.core.counters.aborts_asked == 1
    scene.core.assigned(scene.allocation.assign(asked))
    plan = scene.plan()
    assert plan.num_tokens.tolist() == [8], "its blocks are named by now, and others may match them"
    scene.submit("b", range(9), max_tokens=1)
    scene.compute(plan)
    scene.rest()
    assert (scene.ends["a"].reason, scene.tokens["a"]) == ("abort", [])
    assert scene.ends["b"].num_cached_tokens == 8


def test_an_abort_while_computing_frees_the_row_only_afterwards():
    scene = Scene(seqs=1).ready()
    scene.submit("a", [1, 2], max_tokens=9)
    _, plan = scene.assign()
    scene.abort("a")
    scene.submit("b", [3], max_tokens=1)
    assert scene.out(BLOCKS) == []
    scene.compute(plan)
    _, plan = scene.assign()
    assert plan.freed_rows.tolist() == [0]
    assert [new.row for new in plan.new] == [0]
    scene.compute(plan)
    scene.rest()
    assert scene.tokens == {"a": [], "b": [7]}


def test_the_next_step_is_planned_while_one_is_computed():
    scene = Scene(ahead=True).ready()
    scene.submit("a", [5, 6, 7], max_tokens=3)
    _, first = scene.assign()
    _, second = scene.assign()
    assert (second.starts.tolist(), second.num_tokens.tolist(), second.draws.tolist()) == ([3], [1], [True])
    assert scene.out(BLOCKS) == [], "no more than two"
    scene.compute(first, token=8)
    _, third = scene.assign()
    assert third.starts.tolist() == [4]
    scene.compute(second, token=9)
    assert scene.out(BLOCKS) == [], "what is being drawn is its last token"
    scene.compute(third, token=10)
    assert (scene.rest()["a"].reason, scene.tokens["a"]) == ("length", [8, 9, 10])
    assert (scene.core.counters.steps_ahead, scene.core.counters.rows_wasted) == (2, 0)


def test_a_request_that_ended_meanwhile_costs_one_row_and_keeps_its_blocks_until_then():
    scene = Scene(ahead=True).ready()
    scene.submit("a", [5, 6, 7], max_tokens=9, ignore_eos=False)
    _, first = scene.assign()
    _, second = scene.assign()
    scene.compute(first, token=END)
    assert scene.core.num_running == 0
    assert scene.out(BLOCKS) == [], "its blocks are still written to"
    scene.compute(second)
    asked, plan = scene.assign()
    assert (asked.freed.tolist(), plan) == ([1], None)
    assert (scene.ends["a"].reason, scene.tokens["a"]) == ("stop", [END])
    assert scene.core.counters.rows_wasted == 1


def test_while_a_step_is_computed_the_block_manager_is_not_asked_again_in_vain():
    scene = Scene(num_blocks=4, longest=16, ahead=True).ready()
    scene.submit("a", range(14), max_tokens=2)
    scene.submit("b", range(20, 30), max_tokens=1)
    _, first = scene.assign()
    _, second = scene.assign()
    scene.compute(first)
    asked, plan = scene.assign()
    assert ([one.serial for one in asked.admissions], plan) == ([2], None)
    assert scene.out(BLOCKS) == [], "nothing can have changed"
    scene.compute(second)
    assert scene.rest().keys() == {"a", "b"}


def test_without_credit_no_step_begins():
    scene = Scene().ready()
    scene.core.outputs.stream.credit = 1
    scene.submit("a", [1, 2], max_tokens=9)
    assert len(scene.go_on(read=False)) == 2, "one step is under way when the credit is used up"
    assert not (scene.core.planner.exchange or scene.core.planner.computing)
    assert scene.allocation.statistics().blocks_held == 1
