"""Moves to other replicas, and what a scheduler tells a router of its work."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from pageant.actors.scheduler.load import MEMORY_CHANGE, LoadMeter
from pageant.protocol.allocation import Assigned
from pageant.protocol.arrays import int32
from pageant.protocol.replicas import Move, Moved
from pageant.protocol.routing import Load
from pageant.protocol.sampling import SamplingParams
from pageant.protocol.serving import Resumption, Submit
from pageant.protocol.stepping import ExecutorReady
from pageant.protocol.supervision import DeathsCharged
from tests.actors.scheduler.scene import Scene
from tests.actors.scheduler.test_actor import Told

NOTHING = {"grown_counts": int32(), "grown_blocks": int32(), "admitted": ()}
GRANTED = Assigned(step=1, epoch=1, num_grown=0, blocks_free=0, num_blocks=1000, **NOTHING)


@pytest.fixture
def scene() -> Scene:
    """One request that is computed, and one that waits."""
    scene = Scene(seqs=1).ready()
    scene.submit("runs", [5, 6, 7], max_tokens=4)
    scene.compute(scene.assign()[1])
    scene.assign()
    scene.submit("waits", [8, 9], max_tokens=4)
    return scene


def move(scene, *names, epoch=0):
    return scene.core.move(Move(frontend="f", request_ids=names, epoch=epoch))


def test_moved_requests_end_here_with_a_word_that_is_no_end_to_their_users(scene):
    moved = move(scene, "waits", "runs", "ended")
    assert (moved.request_ids, moved.unknown) == (("waits", "runs"), ("ended",))
    assert moved.deaths.tolist() == moved.died_at.tolist() == [0, 0]
    scene.out("detokenizer")
    assert {(one.reason, one.cause) for one in scene.ends.values()} == {("abort", "moved")}
    assert scene.core.num_open == 0 and scene.core.counters.moved == 2


def test_what_a_request_is_suspected_of_goes_with_it(scene):
    scene.core.executor_gone(1)
    moved = move(scene, "runs", "waits")
    assert moved.deaths.tolist() == [1, 0] and moved.died_at.tolist()[0] >= 4
    other = Scene().ready()
    past = Resumption(token_ids=int32([7]), age=1.0, deaths=2, died_at=4)
    other.submit("suspect", [5, 6, 7], max_tokens=4, resume=past)
    other.submit("innocent", [8, 9], max_tokens=4)
    _, plan = other.assign()
    assert len(plan.new) == 1 and plan.new[0].token_ids.tolist() == [5, 6, 7, 7], "it runs alone"


def test_a_frontend_may_know_of_a_death_first():
    told = Told()
    told.ready().submit("a")
    told.actor.core.planner.computing.clear()
    said = told.tell(Move(frontend="f", request_ids=("a",), epoch=1), "f", 1)
    assert [one.request_ids for one in said if isinstance(one, Moved)] == [("a",)]
    assert not told.open and not [one for one in told.down("executor/0") if isinstance(one, DeathsCharged)]


def test_the_load_is_what_is_to_be_computed_without_what_is_cached(scene):
    meter = LoadMeter(scene.core)
    load = meter.take()
    assert (load.running, load.waiting, load.waiting_tokens) == (1, 1, 1 + 2)
    assert meter.take() is None, "nothing has changed"
    meter.submitted(77)
    assert meter.take().seen.tolist() == [77]
    scene.core.submit(
        Submit(
            **{"request_id": "hit", "frontend": "f", "prompt_token_ids": int32(range(1, 20))},
            **{"params": SamplingParams(max_tokens=2, seed=1), "ticket": 5, "expected_tokens": 3},
        )
    )
    assert meter.take().waiting_tokens == 1 + 2 + 3


def test_the_memory_is_what_requests_hold_and_what_waiting_ones_ask_for():
    scene = Scene(seqs=1)
    meter = LoadMeter(scene.core)
    sizes = {"num_blocks": 16, "block_size": 4, "max_num_seqs": 4, "max_model_len": 32}
    meter.executor_ready(ExecutorReady(epoch=1, device="", dtype="", **sizes))
    scene.ready()
    scene.submit("runs", [5, 6, 7, 8, 9], max_tokens=4)
    (asked,) = scene.out("blocks")
    assigned = scene.allocation.assign(asked)
    meter.assigned(assigned)
    scene.core.assigned(assigned)
    load = meter.take()
    assert (load.memory, load.memory_tokens) == (2 / 16, 64)
    scene.submit("waits", [8] * 16, max_tokens=4)
    assert meter.take().memory == 2 / 16 + 16 / 64
    meter.assigned(msgspec.structs.replace(assigned, blocks_free=0))
    assert meter.take().memory == 1 + 16 / 64, "memory that fills is told, although no request came"
    meter.executor_ready(ExecutorReady(epoch=2, device="", dtype="", **sizes))
    assert meter.take().memory == 16 / 64


def test_memory_that_fills_too_slowly_to_see_is_told_by_each_share_that_matters():
    meter, told = LoadMeter(Scene().core), []
    for free in range(800, 49, -1):
        meter.assigned(msgspec.structs.replace(GRANTED, blocks_free=free))
        if (load := meter.take()) is not None:
            told.append(load.memory)
    assert told[0] == pytest.approx(0.2) and told[-1] >= 0.95 - MEMORY_CHANGE
    assert len(told) <= 1 + 0.75 / MEMORY_CHANGE


def test_a_tokens_time_is_told_from_a_steps(scene):
    meter = LoadMeter(scene.core)
    assert meter.seconds_per_token == 0
    for _ in range(20):
        meter.stepped(4, 0.012)
    assert 0 < meter.seconds_per_token < 0.012 / 4
    for tokens in (4, 100, 40, 200) * 10:
        meter.stepped(tokens, 0.01 + 0.0005 * tokens)
    assert meter.seconds_per_token == pytest.approx(0.0005, rel=0.01)


async def test_a_router_is_told_while_anything_changes_and_a_new_one_from_the_start():
    told = Told()
    told.cell.name = "replica-0/scheduler"
    spawned = []
    told.cell.spawn = spawned.append
    told.ready()
    told.submit("a")
    assert not spawned, "nobody wants to know"
    told.up("router")
    task = asyncio.ensure_future(spawned.pop())
    await asyncio.sleep(0)
    assert [one.waiting for _, one in told.said if isinstance(one, Load)] == [1]
    task.cancel()
    told.actor._tells_load = False
    told.down("router")
    told.submit("b")
    assert not spawned
