"""Plans of several steps of the scheduler's core."""

from __future__ import annotations

import numpy as np
import pytest

from pageant.actors.scheduler.core import EXECUTOR
from pageant.protocol.stepping import CutShort
from pageant.protocol.structured_outputs import StructuredOutputsParams
from tests.actors.scheduler.scene import END, FINAL, Scene


def several(steps=4, longest=56, **changes):
    """A scene whose executor takes plans of so many steps."""
    scene = Scene(ahead=True, longest=longest, max_steps_per_plan=steps, **changes)
    return scene.ready(multi_step=True, max_model_len=longest)


def test_while_nobody_waits_plans_are_of_several_steps_up_to_the_first_end():
    scene = several()
    scene.submit("a", [5, 6, 7], max_tokens=20, **FINAL)
    scene.submit("b", [5, 6, 7], max_tokens=12, **FINAL)
    plans = scene.go_on()
    assert [plan.num_steps for plan in plans] == [1, 1, 4, 4, 3, 4, 3]
    assert [plan.starts.tolist() for plan in plans[2:]] == [[4, 3], [8, 7], [12, 11], [15], [19]]
    assert all(plan.num_tokens.tolist() == [1] * len(plan.rows) for plan in plans[2:])
    assert scene.tokens == {"a": [7] * 20, "b": [7] * 12} and scene.rest().keys() == {"a", "b"}
    counters = scene.core.counters
    assert (counters.steps, counters.steps_together, counters.rows_wasted) == (20, 18, 0)


@pytest.mark.parametrize(
    "params",
    [
        {},
        {**FINAL, "stop": ("x",)},
        {**FINAL, "logprobs": 1},
        {**FINAL, "frequency_penalty": 0.5},
        {**FINAL, "structured_outputs": StructuredOutputsParams(regex="a*")},
    ],
    ids=lambda params: max(params, default="streamed"),
)
def test_who_must_know_of_each_token_has_all_go_step_by_step(params):
    scene = several()
    scene.submit("a", [5, 6, 7], max_tokens=9, **FINAL)
    scene.submit("b", [5, 6, 7], max_tokens=9, **params)
    assert {plan.num_steps for plan in scene.go_on()} == {1}


def test_an_executor_that_says_nothing_of_several_steps_gets_one_at_a_time():
    scene = Scene(ahead=True, max_steps_per_plan=4).ready()
    scene.submit("a", [5, 6, 7], max_tokens=9, **FINAL)
    assert {plan.num_steps for plan in scene.go_on()} == {1}


def test_who_comes_has_plans_of_several_steps_cut_short_and_what_was_not_computed_comes_again():
    scene = several()
    scene.submit("a", [5, 6, 7], max_tokens=20, **FINAL)
    plans = scene.prefill()
    assert [(plan.num_steps, plan.continues) for plan in plans] == [(4, False), (4, True)]
    scene.submit("b", [8, 9], max_tokens=4, **FINAL)
    assert [(type(cut), cut.number) for cut in scene.out(EXECUTOR)] == [(CutShort, plans[-1].number)]
    assert not scene.plans(), "nothing comes before it is known how far they came"
    scene.submit("c", [1], max_tokens=1, **FINAL)
    assert not scene.out(EXECUTOR), "they are told once"
    scene.compute(plans[0], [11, 12], num_steps=2)
    assert not scene.plans()
    scene.compute(plans[1], num_steps=0)
    plan, *others = scene.plans()
    assert plan.starts.tolist() == [5, 0, 0] and not plan.continues
    assert len(plan.new) == 2
    scene.compute(plan, 13)
    scene.run_on(others + scene.plans())
    scene.rest()
    assert scene.tokens["a"] == [7, 11, 12, 13, *[7] * 16]
    assert (len(scene.tokens["b"]), scene.tokens["c"]) == (4, [13])
    assert scene.core.counters.plans_cut == 1


def test_when_the_last_one_is_gone_plans_of_several_steps_are_cut_short():
    scene = several()
    scene.submit("a", [5, 6, 7], max_tokens=20, **FINAL)
    scene.submit("b", [5, 6, 7], max_tokens=20, **FINAL)
    first, *plans = scene.prefill()
    scene.compute(first)
    plans += scene.plans()
    assert [plan.num_steps for plan in plans] == [4, 4]
    scene.abort("a")
    assert not scene.out(EXECUTOR), "they go on for the other"
    scene.abort("b")
    assert [(type(cut), cut.number) for cut in scene.out(EXECUTOR)] == [(CutShort, plans[-1].number)]
    scene.compute(plans[0], num_steps=1)
    scene.compute(plans[1], num_steps=0)
    scene.submit("c", [1, 2], max_tokens=3, **FINAL)
    scene.run_on(scene.plans())
    scene.rest()
    assert scene.tokens["c"] == [7] * 3


def test_of_what_was_not_computed_nothing_is_found_by_others():
    """A block of four is full with the token that was drawn last, and not computed."""
    scene = several()
    scene.submit("a", [5, 6], max_tokens=20, **FINAL)
    plans = scene.prefill()
    scene.submit("b", [5, 6, 7, 11, 12], max_tokens=1)
    scene.compute(plans[0], [11], num_steps=1)
    scene.abort("a")
    scene.compute(plans[1], num_steps=0)
    assert len(scene.out(EXECUTOR)) == 1, "a word to cut them short"
    asked, plan = scene.assign()
    assert asked.withdrawn_lengths.tolist() == [3, 6]
    assert plan.starts.tolist() == [3], "of its fourth token nothing was computed"


def test_who_ends_with_the_last_token_of_a_plan_leaves_no_block_that_the_next_was_to_fill():
    """End one of two requests in the first steps, and the other with the last of a plan. The executor takes that for
    the end of all: the plan that continues it is not computed, nor then the token that was drawn last."""
    scene = several(num_blocks=40)
    scene.submit("a", [5, 6], ignore_eos=False, max_tokens=30, **FINAL)
    scene.submit("b", [8, 9], ignore_eos=False, max_tokens=30, **FINAL)
    made = scene.plans()
    while made[0].num_steps == 1:
        scene.compute(made.pop(0), 11)
        made += scene.plans()
    first, second = made
    a, b = (first.rows.tolist().index(request.held_row) for request in scene.core.requests.running)
    drawn = np.full((4, 2), 12)
    drawn[0, b] = END
    scene.compute(first, drawn.ravel().tolist())
    (third,) = scene.plans()
    drawn = np.full((4, 2), 13)
    drawn[3, a] = END
    scene.compute(second, drawn.ravel().tolist())
    assert third.continues and third.rows.tolist() == [first.rows[a]]
    made = scene.plans()
    scene.compute(third, num_steps=0)
    made += scene.plans()
    answer = [5, 6, *scene.tokens["a"]]
    assert answer[-1] == END and len(answer) % 4 == 0 and not made
    scene.submit("c", [*answer, 1, 1, 1, 1, 1], max_tokens=1)
    plan = next(plan for plan in scene.plans() if plan.new)
    assert plan.starts.tolist() == [len(answer) - 1], "nothing was computed of the last token"


def test_tokens_that_end_a_request_within_a_plan_are_its_last():
    scene = several(steps=8)
    scene.submit("a", [5, 6, 7], ignore_eos=False, max_tokens=30, **FINAL)
    plans = scene.prefill()
    scene.compute(plans[0], [11, 12, END], num_steps=3)
    scene.compute(plans[1], num_steps=0)
    end = scene.rest()["a"]
    assert (end.reason, scene.tokens["a"]) == ("stop", [7, 11, 12, END])


def test_where_blocks_are_short_a_plan_is_of_one_step():
    scene = several(num_blocks=2, steps=8)
    scene.submit("a", [5, 6, 7], max_tokens=5, **FINAL)
    plans = scene.go_on()
    assert {plan.num_steps for plan in plans} == {1} and scene.tokens["a"] == [7] * 5
    assert scene.core.counters.preemptions == 0


def test_a_request_goes_on_elsewhere_when_its_executor_dies_within_a_plan_of_several_steps():
    scene = several()
    scene.submit("a", [5, 6, 7], max_tokens=20, **FINAL)
    scene.prefill()
    scene.core.executor_gone(1)
    scene.core.pool_gone(1)
    scene.allocation.release_all()
    scene.ready(epoch=2, multi_step=True, max_model_len=56)
    scene.rest()
    assert scene.tokens["a"] == [7] * 20 and scene.core.counters.recomputed == 1
