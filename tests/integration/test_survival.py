"""Whatever process is killed while mixed requests stream, each of them ends as it would have: no token is lost,
repeated or changed."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Awaitable, Callable, Iterator

import psutil
import pytest

import pageant
from pageant import BeamSearchParams, SamplingParams
from pageant.scripts.chaos.load import Stream, difference, mixed_requests

SETTINGS = {"dtype": "float32", "threads": 1, "num_blocks": 160, "max_num_seqs": 24, "seed": 5}
SUSPICION = {"heartbeat_seconds": 0.5, "suspicion_seconds": 3.0}
SHORT = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
ASKED = mixed_requests(17, 110)


async def run_all(engine: pageant.Engine, disturb=None) -> list[pageant.RequestOutput]:
    """All requests side by side; `disturb` is awaited when each has begun."""
    streams = [Stream(engine, asked) for asked in ASKED]
    reading = [asyncio.create_task(stream.read()) for stream in streams]
    if disturb is not None:
        # The best of several are known at the end only.
        shown = [one for one, asked in zip(streams, ASKED, strict=True) if not asked.params.best_of]
        await asyncio.gather(*(stream.begun.wait() for stream in shown))
        await disturb()
    async with asyncio.timeout(60):
        return await asyncio.gather(*reading)


def assert_same(found: list[pageant.RequestOutput], right: list[pageant.RequestOutput]) -> None:
    assert [difference(*pair) for pair in zip(found, right, strict=True)] == [None] * len(right)


@pytest.fixture(scope="module")
def right(checkpoint) -> list[pageant.RequestOutput]:
    """The undisturbed run."""

    async def undisturbed() -> list[pageant.RequestOutput]:
        async with pageant.Engine(checkpoint.path, placement="one", **SETTINGS) as engine:
            return await run_all(engine)

    return asyncio.run(undisturbed())


@pytest.fixture(scope="module")
def engine(checkpoint) -> Iterator[pageant.Engine]:
    """Every actor in its own process, with no option beside."""
    engine = pageant.Engine(checkpoint.path, placement="each", **SETTINGS, **SUSPICION)
    asyncio.run(engine.start())
    yield engine
    asyncio.run(engine.close())


async def pid_of(engine: pageant.Engine, node: str) -> int:
    return next(one.pid for one in await engine.statistics() if one.node == node)


async def killer(
    engine: pageant.Engine, *nodes: str, number: int = signal.SIGKILL
) -> Callable[[], Awaitable[None]]:
    """Return what sends these a signal, at once: whom, is asked before."""
    pids = [await pid_of(engine, node) for node in nodes]

    async def kill() -> None:
        for pid in pids:
            os.kill(pid, number)

    return kill


HELD = {
    "executor": ("recomputed",),
    "blocks": ("recomputed",),
    "detokenizer": ("reopened",),
    "scheduler": ("resumed",),
    "tokenizer": (),
    "grammar": (),
}


@pytest.mark.parametrize("actor", list(HELD))
async def test_a_killed_process_costs_nobody_a_token(engine, right, actor):
    before = (await engine.scheduler_statistics()).counters
    pid = await pid_of(engine, actor)
    found = await run_all(engine, await killer(engine, actor))
    assert_same(found, right)
    assert (await engine.complete("All are back", SHORT)).finished
    assert await pid_of(engine, actor) != pid
    after = (await engine.scheduler_statistics()).counters
    if actor == "scheduler":
        before = dict.fromkeys(before, 0)
    for counter in HELD[actor]:
        assert after[counter] - before[counter] >= 12, f"{counter}: the death came when they were under way"
    await rest(engine)


async def rest(engine: pageant.Engine) -> None:
    """Check that nothing is left of anything."""
    async with asyncio.timeout(120):
        while True:
            scheduler, pool = await engine.scheduler_statistics(), await engine.pool_statistics()
            if not (scheduler.num_running or scheduler.num_waiting or pool.blocks_held):
                return


async def test_all_of_them_at_once_cost_nobody_a_token(engine, right):
    found = await run_all(engine, await killer(engine, *HELD))
    assert_same(found, right)
    await rest(engine)


async def test_processes_that_stop_are_killed_and_cost_nobody_a_token(engine, right):
    hung = ("executor", "scheduler")
    pids = [await pid_of(engine, node) for node in hung]
    found = await run_all(engine, await killer(engine, *hung, number=signal.SIGSTOP))
    assert_same(found, right)
    assert not any(psutil.pid_exists(pid) for pid in pids)
    await rest(engine)


async def test_what_a_dying_tokenizer_had_in_its_hands_is_asked_of_its_successor(engine):
    pid = await pid_of(engine, "tokenizer")
    os.kill(pid, signal.SIGSTOP)  # what comes now stays in its hands
    asked = [asyncio.create_task(engine.complete(f"Number {i}", SHORT)) for i in range(4)]
    chat = asyncio.create_task(_last(engine.chat([{"role": "user", "content": "Hi"}], SHORT)))
    beams = asyncio.create_task(engine.beam_search("One", BeamSearchParams(beam_width=2, max_tokens=2)))
    await asyncio.sleep(0)  # they begin
    while engine._session.frontend.num_open < 5:
        pass
    os.kill(pid, signal.SIGKILL)
    async with asyncio.timeout(120):
        assert all(output.finished for output in [*await asyncio.gather(*asked), await chat])
        assert len((await beams).sequences) == 2
    assert await pid_of(engine, "tokenizer") != pid


def test_a_batch_does_not_notice_a_death(checkpoint):
    prompts = [[*range(10, 30), extra] for extra in range(4, 12)]
    params = SamplingParams(temperature=0, max_tokens=200, ignore_eos=True)
    caught: list[list[pageant.RequestOutput]] = []
    with pageant.LLM(checkpoint.path, placement="auto", progress=False, **SETTINGS) as llm:
        right = llm.generate(prompts, params)
        thread = threading.Thread(target=lambda: caught.append(llm.generate(prompts, params)))
        thread.start()
        while not llm.scheduler_statistics().num_running:
            pass
        os.kill(next(node.pid for node in llm.statistics() if node.node == "executor"), signal.SIGKILL)
        thread.join(timeout=60)
        assert_same(caught[0], right)
        assert llm.scheduler_statistics().counters["recomputed"] == 8


async def test_closing_leaves_no_process(checkpoint):
    async with pageant.Engine(checkpoint.path, placement="each", **SETTINGS) as engine:
        await engine.complete([5, 6], SHORT)
        pids = [node.pid for node in await engine.statistics()]
    assert len(pids) == 7
    assert [pid for pid in pids if pid != os.getpid() and psutil.pid_exists(pid)] == []


async def _last(outputs) -> pageant.RequestOutput:
    async for output in outputs:
        last = output
    return last
