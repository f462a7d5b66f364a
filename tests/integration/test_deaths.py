"""A death ends the requests concerned with a clear error, and the restarted actor serves the next ones."""

from __future__ import annotations

import asyncio
import os
import signal
import threading

import psutil
import pytest

import pageant
from pageant import SamplingParams

PROMPT = list(range(10, 30))
LONG = SamplingParams(temperature=0, max_tokens=230, ignore_eos=True)
SHORT = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)


async def _kill(engine: pageant.Engine, actor: str) -> None:
    nodes = {node.node: node.pid for node in await engine.statistics()}
    os.kill(nodes[actor], signal.SIGKILL)


@pytest.mark.parametrize("actor", ["executor", "blocks", "scheduler", "detokenizer"])
async def test_a_killed_actor_ends_its_requests_by_name_and_comes_back(checkpoint, actor):
    engine = pageant.Engine(checkpoint.path, placement="each", threads=1, num_blocks=128)
    async with engine:
        streams = [engine.generate([*PROMPT, extra], LONG) for extra in range(4, 8)]
        for stream in streams:
            await anext(stream)
        await _kill(engine, actor)
        results = await asyncio.gather(*(_exhaust(stream) for stream in streams), return_exceptions=True)
        for result in results:
            assert isinstance(result, pageant.RequestFailed | pageant.PeerGone), result
            assert {"blocks": "block manager"}.get(actor, actor) in str(result)
        after = await engine.complete(PROMPT, SHORT)
        assert after.outputs[0].token_ids == checkpoint.greedy(PROMPT, 6)
        pool = await engine.pool_statistics()
        assert pool.blocks_held == 0


def test_a_death_ends_a_batch_with_the_same_error(checkpoint):
    with pageant.LLM(checkpoint.path, placement="each", progress=False, threads=1, num_blocks=128) as llm:
        pid = next(node.pid for node in llm.statistics() if node.node == "executor")
        caught: list[BaseException] = []

        def generate() -> None:
            try:
                llm.generate([[*PROMPT, extra] for extra in range(4, 8)], LONG)
            except pageant.PageantError as error:
                caught.append(error)

        thread = threading.Thread(target=generate)
        thread.start()
        while not llm.scheduler_statistics().num_running:
            pass
        os.kill(pid, signal.SIGKILL)
        thread.join(timeout=60)
        assert isinstance(caught[0], pageant.RequestFailed)
        assert "the executor died" in str(caught[0])
        assert llm.generate(PROMPT, SHORT)[0].outputs[0].token_ids == checkpoint.greedy(PROMPT, 6)


async def test_a_killed_tokenizer_disturbs_nobody_and_comes_back(checkpoint):
    async with pageant.Engine(checkpoint.path, placement="each", threads=1, num_blocks=128) as engine:
        stream = engine.generate("Hello there", LONG)
        await anext(stream)
        await _kill(engine, "tokenizer")
        assert len((await _exhaust(stream)).outputs[0].token_ids) == 230
        assert (await engine.complete("Hello again", SHORT)).finished


async def _exhaust(stream) -> pageant.RequestOutput:
    async for output in stream:
        last = output
    return last


async def test_closing_leaves_no_process(checkpoint):
    async with pageant.Engine(checkpoint.path, placement="each", threads=1, num_blocks=64) as engine:
        await engine.complete(PROMPT, SHORT)
        pids = [node.pid for node in await engine.statistics()]
    assert len(pids) == 6
    assert [pid for pid in pids if pid != os.getpid() and psutil.pid_exists(pid)] == []
