"""Pauses: what becomes of requests in each mode, and when a pause is complete."""

from __future__ import annotations

import asyncio

import pytest

from pageant.actors.scheduler.core import BLOCKS
from pageant.protocol.arrays import int32
from pageant.protocol.lifecycle import AwaitRest, PauseScheduling, ResumeScheduling, SchedulingPaused
from pageant.protocol.sampling import RequestOutputKind
from pageant.protocol.serving import Resumption
from pageant.protocol.stepping import CutShort
from pageant.protocol.supervision import ActorChanged
from tests.actors.scheduler.scene import Scene
from tests.actors.scheduler.test_actor import Told


@pytest.fixture
def scene() -> Scene:
    """One request that has drawn a token, and whose next step is computed."""
    scene = Scene().ready()
    scene.submit("one", [5, 6, 7], max_tokens=4)
    scene.compute(scene.assign()[1])
    scene.under_way = scene.assign()[1]
    return scene


def test_nothing_is_planned_after_the_step_at_hand_and_kept_requests_go_on(scene):
    scene.core.pause("keep")
    scene.submit("late", [8, 9])
    assert not scene.core.is_at_rest
    scene.compute(scene.under_way)
    assert scene.out(BLOCKS) == [] and scene.core.is_at_rest
    assert scene.core.num_running == 1, "it keeps its memory"
    assert scene.core.num_waiting == 1
    scene.core.resume()
    _, plan = scene.assign()
    assert plan.num_tokens.tolist() == [1, 2], "one goes on where it was"


def test_kept_requests_give_up_their_memory_where_that_is_wished(scene):
    scene.core.pause("keep", release=True)
    scene.compute(scene.under_way)
    assert not scene.core.is_at_rest, "the block manager does not know of it yet"
    asked, plan = scene.assign()
    assert (len(asked.freed), plan) == (1, None)
    assert scene.core.is_at_rest and not len(scene.allocation)
    assert (scene.core.num_running, scene.core.num_waiting) == (0, 1)
    scene.core.resume()
    _, plan = scene.assign()
    assert plan.num_tokens.sum() <= 5 and plan.new[0].token_ids.tolist() == [5, 6, 7, 7, 7]


def test_open_requests_are_computed_to_their_ends_and_later_ones_wait(scene):
    scene.core.pause("wait")
    scene.submit("late", [8, 9])
    plan = scene.under_way
    while plan is not None:
        assert len(plan.rows) == 1 and not scene.core.is_at_rest
        scene.compute(plan)
        _, plan = scene.assign()  # the last gives back what it held
    assert scene.ends["one"].reason == "length"
    assert scene.core.is_at_rest and scene.core.num_waiting == 1
    scene.core.resume()
    _, plan = scene.assign()
    assert plan.new[0].token_ids.tolist() == [8, 9]


def test_open_requests_are_aborted_and_later_ones_wait(scene):
    scene.core.pause("abort")
    scene.submit("late", [8, 9])
    scene.out("")
    assert scene.ends["one"].reason == "abort" and scene.ends["one"].num_output_tokens == 1
    assert not scene.core.is_at_rest
    scene.compute(scene.under_way)
    scene.assign()
    assert scene.core.is_at_rest and not len(scene.allocation) and "late" not in scene.ends
    assert scene.core.counters.aborts_running_decode == 1
    scene.core.resume()
    assert scene.assign()[1].new[0].token_ids.tolist() == [8, 9]


def test_aborts_deadlines_and_overload_count_who_is_held(scene):
    scene = Scene(max_waiting_requests=2).ready()
    scene.core.pause("wait")
    for name in ("a", "b", "c"):
        scene.submit(name, [8, 9], deadline=5.0 if name == "b" else None)
    scene.out("")
    assert scene.ends["c"].cause == "overload" and "2 requests are waiting" in scene.ends["c"].message
    scene.abort("a")
    scene.core.expire(6.0)
    scene.out("")
    assert (scene.ends["a"].reason, scene.ends["b"].cause) == ("abort", "deadline")
    assert scene.core.num_waiting == 0 and scene.core.is_at_rest


def test_what_an_earlier_scheduler_had_is_open_and_what_is_new_is_not():
    behind = Resumption(token_ids=int32([7]), age=1.0)
    for mode, reason in (("wait", None), ("abort", "abort"), ("keep", None)):
        scene = Scene()
        scene.core.pause(mode)
        scene.ready()
        scene.submit("old", [5, 6], resume=behind, max_tokens=4)
        scene.submit("new", [5, 6], max_tokens=4)
        if mode == "wait":
            assert len(scene.assign()[1].rows) == 1, "the old one alone is computed"
        else:
            assert scene.out(BLOCKS) == []
        assert getattr(scene.ends.get("old"), "reason", None) == reason and "new" not in scene.ends


def test_a_plan_of_several_steps_is_cut_short():
    scene = Scene(ahead=True, max_steps_per_plan=4, short_step_seconds=0.0).ready(multi_step=True)
    scene.submit("one", [5, 6], max_tokens=12, output_kind=RequestOutputKind.FINAL_ONLY)
    _, plan = scene.assign()
    scene.compute(plan)
    plans = []
    while not any(plan.num_steps > 1 for plan in plans):
        plans += [plan for _, plan in [scene.assign()] if plan is not None]
        if plans and plans[-1].num_steps == 1:
            scene.compute(plans.pop(0))
    scene.core.pause("keep")
    told = [message for _, message in scene.core.take_outbox()]
    assert any(isinstance(message, CutShort) for message in told)


async def test_the_shell_answers_when_all_is_at_rest_and_says_what_it_is():
    told = Told().ready()
    told.submit("one")
    (changed,) = [m for m in told.tell(PauseScheduling(mode="keep")) if isinstance(m, ActorChanged)]
    assert changed.facts == told.actor.facts() == {"paused": 1, "moves": 1}
    waiting = asyncio.create_task(told.actor.await_rest(AwaitRest()))
    await asyncio.sleep(0)
    assert not waiting.done(), "an exchange is at hand"
    told.tell(ResumeScheduling())
    assert not (await waiting).done, "it was resumed meanwhile"
    assert told.actor.facts() == {"paused": 0, "moves": 1}


def test_the_shell_pauses_only_if_it_is_idle_where_that_is_asked():
    told = Told().ready()
    told.submit("one")
    answer = told.actor.pause(PauseScheduling(mode="keep", if_idle=True))
    assert isinstance(answer, SchedulingPaused) and (answer.done, answer.num_open) == (False, 1)
    assert told.actor.core.paused is None


def test_a_scheduler_can_begin_paused():
    told = Told(paused="keep").ready()
    assert told.actor.facts() == {"paused": 1, "moves": 1}
    assert told.submit("one") == [] or told.actor.core.planner.is_idle
