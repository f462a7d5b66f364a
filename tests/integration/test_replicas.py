"""Replicas share out the requests, and compute what one engine does. Whatever dies of one, its requests go on at the
other: no token is lost, repeated or changed."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator

import pytest

import pageant
from pageant import SamplingParams
from pageant.protocol.routing import GetRouterStatistics
from pageant.protocol.scheduling import GetSchedulerStatistics
from pageant.protocol.statistics import FrontendStatistics, GetFrontendStatistics
from pageant.protocol.supervision import Directory, GetDirectory
from pageant.scripts.chaos.load import Stream, difference, mixed_requests

SETTINGS = {"dtype": "float32", "threads": 1, "num_blocks": 160, "max_num_seqs": 24, "seed": 5}
SHORT = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
ASKED = mixed_requests(24, 110)
BEGUN = 4
NODES = {
    "front": {},
    "step-{replica}": {"process": True},
    "compute-{replica}": {"process": True},
    "memory-{replica}": {"process": True},
    "advice": {"process": True},
}
ACTORS = {
    "router": {"node": "advice", "options": {"routing": "least"}},  # which gives each replica its share
    "scheduler": {"node": "step-{replica}"},
    **{name: {"node": "compute-{replica}"} for name in ("executor", "grammar")},
    **{name: {"node": "memory-{replica}"} for name in ("blocks", "detokenizer")},
}


async def run_all(engine: pageant.Engine, disturb=None) -> list[pageant.RequestOutput]:
    """All requests side by side; `disturb` is awaited when a few have begun."""
    streams = [Stream(engine, asked) for asked in ASKED]
    reading = [asyncio.create_task(stream.read()) for stream in streams]
    if disturb is not None:
        shown = [stream for stream in streams if stream.is_shown]
        while sum(stream.begun.is_set() for stream in shown) < BEGUN:
            waiting = [asyncio.create_task(one.begun.wait()) for one in shown if not one.begun.is_set()]
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        await disturb()
    async with asyncio.timeout(120):
        return await asyncio.gather(*reading)


def assert_same(found: list[pageant.RequestOutput], right: list[pageant.RequestOutput]) -> None:
    assert [difference(*pair) for pair in zip(found, right, strict=True)] == [None] * len(right)


@pytest.fixture(scope="module")
def right(checkpoint) -> list[pageant.RequestOutput]:
    """The outputs of one engine."""

    async def undisturbed() -> list[pageant.RequestOutput]:
        async with pageant.Engine(checkpoint.path, placement="one", **SETTINGS) as engine:
            return await run_all(engine)

    return asyncio.run(undisturbed())


@pytest.fixture(scope="module")
def engine(checkpoint) -> Iterator[pageant.Engine]:
    """Two replicas of three processes each."""
    engine = pageant.Engine(checkpoint.path, replicas=2, nodes=NODES, actors=ACTORS, **SETTINGS)
    asyncio.run(engine.start())
    yield engine
    asyncio.run(engine.close())


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    """Ask until it holds. Each question takes a turn of the supervisor's or a replica's own."""
    async with asyncio.timeout(120):
        while not await holds():
            pass


async def all_are_up(engine: pageant.Engine) -> bool:
    directory: Directory = await engine.ask("supervisor", GetDirectory())
    return all(entry.up for entry in directory.actors)


async def is_at_rest(engine: pageant.Engine) -> bool:
    scheduler, pool = await engine.scheduler_statistics(), await engine.pool_statistics()
    return not (scheduler.num_running or scheduler.num_waiting or pool.blocks_held)


async def submitted_at(engine: pageant.Engine, replica: int) -> int:
    found = await engine.ask(f"replica-{replica}/scheduler", GetSchedulerStatistics())
    return found.counters["submitted"]


async def test_requests_are_shared_out_and_computed_as_by_one_engine(engine, right):
    before = [await submitted_at(engine, replica) for replica in range(2)]
    assert_same(await run_all(engine), right)
    taken = [await submitted_at(engine, replica) - before[replica] for replica in range(2)]
    assert min(taken) >= 3, "each has its share"
    await until(lambda: is_at_rest(engine))


@pytest.mark.parametrize("nodes", [("compute-0",), ("step-1", "compute-1", "memory-1")])
async def test_the_requests_of_a_replica_that_dies_go_on_at_the_other(engine, right, nodes):
    await until(lambda: all_are_up(engine))
    moved = engine._session.frontend._moving.num_moved
    pids = [one.pid for one in await engine.statistics() if one.node in nodes]
    assert len(pids) == len(nodes)

    async def kill() -> None:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)

    assert_same(await run_all(engine, kill), right)
    assert engine._session.frontend._moving.num_moved - moved >= 1, "the death came when they were under way"
    assert (await engine.complete("It goes on", SHORT)).finished
    await until(lambda: all_are_up(engine))
    await until(lambda: is_at_rest(engine))


async def test_statistics_name_the_replicas_that_compute_a_request(engine, right):
    await until(lambda: all_are_up(engine))
    before = [await submitted_at(engine, replica) for replica in range(2)]
    seen: list[FrontendStatistics] = []

    async def look() -> None:
        seen.append(await engine.ask("frontend", GetFrontendStatistics(open_max=100)))

    assert_same(await run_all(engine, look), right)
    taken = [await submitted_at(engine, replica) - before[replica] for replica in range(2)]
    told = Counter(name for one in seen[0].open for name in one.replicas)
    assert {*told} == {"replica-0/", "replica-1/"}
    assert all(told[f"replica-{replica}/"] <= taken[replica] for replica in range(2))


async def test_a_router_that_dies_is_missed_by_nobody(engine, right):
    await until(lambda: all_are_up(engine))
    before = await engine.ask("router", GetRouterStatistics())
    assert before.decisions and not before.policy_failures
    (pid,) = (one.pid for one in await engine.statistics() if one.node == "advice")

    async def kill() -> None:
        os.kill(pid, signal.SIGKILL)
        assert (await engine.complete("Nobody is asked", SHORT)).finished

    assert_same(await run_all(engine, kill), right)
    await until(lambda: all_are_up(engine))
    await engine.complete("It is asked again", SHORT)
    after = await engine.ask("router", GetRouterStatistics())
    assert after.decisions == 1 and {*after.replicas} == {"replica-0/", "replica-1/"}
    await until(lambda: is_at_rest(engine))


async def test_replicas_in_processes_pause_sleep_and_go_on(engine, right):
    await engine.pause("keep")
    assert await engine.is_paused()
    await engine.resume()
    assert await engine.reset_prefix_cache(reset_running_requests=True)
    await engine.sleep(level=1)
    assert await engine.is_sleeping()
    await engine.wake_up()
    assert_same(await run_all(engine), right)
