"""Replicas share out the requests, and compute what one engine does. Whatever dies of one, its requests go on at the
other: no token is lost, repeated or changed."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Iterator

import pytest

import pageant
from pageant import SamplingParams
from pageant.protocol.errors import BadRequest, RemoteError, Unsupported
from pageant.protocol.scheduling import GetSchedulerStatistics
from pageant.protocol.supervision import Directory, GetDirectory
from pageant.scripts.chaos.load import Stream, difference, mixed_requests

SETTINGS = {"dtype": "float32", "threads": 1, "num_blocks": 160, "max_num_seqs": 24, "seed": 5}
SHORT = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
ASKED = mixed_requests(17, 110)
NODES = {
    "front": {},
    "step-{replica}": {"process": True},
    "compute-{replica}": {"process": True},
    "memory-{replica}": {"process": True},
}
ACTORS = {
    "scheduler": {"node": "step-{replica}"},
    **{name: {"node": "compute-{replica}"} for name in ("executor", "grammar")},
    **{name: {"node": "memory-{replica}"} for name in ("blocks", "detokenizer")},
}


async def run_all(engine: pageant.Engine, disturb=None) -> list[pageant.RequestOutput]:
    """All requests side by side; `disturb` is awaited when each has begun."""
    streams = [Stream(engine, asked) for asked in ASKED]
    reading = [asyncio.create_task(stream.read()) for stream in streams]
    if disturb is not None:
        await asyncio.gather(*(stream.begun.wait() for stream in streams if stream.is_shown))
        await disturb()
    async with asyncio.timeout(60):
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
    async with asyncio.timeout(30):
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
    assert min(taken) >= 6, "each has its share"
    await until(lambda: is_at_rest(engine))


@pytest.mark.parametrize(
    "nodes", [("compute-0",), ("step-1",), ("memory-0",), ("step-0", "compute-0", "memory-0")]
)
async def test_the_requests_of_a_replica_that_dies_go_on_at_the_other(engine, right, nodes):
    await until(lambda: all_are_up(engine))
    moved = engine._session.frontend._moving.num_moved
    pids = [one.pid for one in await engine.statistics() if one.node in nodes]
    assert len(pids) == len(nodes)

    async def kill() -> None:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)

    assert_same(await run_all(engine, kill), right)
    assert engine._session.frontend._moving.num_moved - moved >= 6, "the death came when they were under way"
    assert (await engine.complete("It goes on", SHORT)).finished
    await until(lambda: all_are_up(engine))
    await until(lambda: is_at_rest(engine))


async def test_what_replicas_do_not_do_is_refused_by_name(engine):
    for operation in (engine.pause(), engine.sleep(), engine.update_weights("elsewhere")):
        with pytest.raises((RemoteError, Unsupported), match="has replicas"):
            await operation
    assert not await engine.is_paused()
    assert await engine.reset_prefix_cache()
    with pytest.raises((RemoteError, BadRequest, Unsupported), match="has replicas"):
        await engine.reset_prefix_cache(reset_running_requests=True)
