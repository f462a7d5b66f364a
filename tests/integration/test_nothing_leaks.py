"""Thousands of random submits, aborts, stops and preemptions on a real engine leave nothing behind."""

from __future__ import annotations

import asyncio
import random

import pytest

import pageant
from pageant import SamplingParams

REQUESTS = 1000
CONCURRENT = 48


def _params(rng: random.Random) -> SamplingParams:
    return SamplingParams(
        temperature=rng.choice([0.0, 0.8, 1.5]),
        seed=rng.randrange(1000),
        max_tokens=rng.randint(1, 60),
        min_tokens=0,
        stop=rng.choice([(), tuple("abcdefghijklmnopqrstuvwxyz"), ("th", "s", "n", "é")]),
        ignore_eos=rng.random() < 0.5,
    )


@pytest.mark.parametrize("wire", ["auto", "always"])
async def test_thousands_of_random_requests_leave_nothing_behind(checkpoint, wire):
    rng = random.Random(17)
    shared = [[rng.randrange(4, 200) for _ in range(48)] for _ in range(6)]
    ends: dict[str, int] = {}

    async def one(engine: pageant.Engine) -> None:
        prompt = rng.choice(shared)[: rng.choice([16, 33, 48])] + [rng.randrange(4, 200)] * rng.randint(1, 24)
        leave_after = rng.choice([None, None, None, None, 1, 2, 5])
        stream = engine.generate(prompt, _params(rng))
        seen, end = 0, "left"
        async for output in stream:
            seen += 1
            if output.finished:
                end = output.outputs[0].finish_reason or ""
            elif leave_after is not None and seen >= leave_after:
                break
        await stream.aclose()
        ends[end] = ends.get(end, 0) + 1

    async def worker(engine: pageant.Engine, left: list[int]) -> None:
        while left:
            left.pop()
            if rng.random() < 0.1:  # a user who is cancelled at some moment
                task = asyncio.create_task(one(engine))
                for _ in range(rng.randrange(6)):
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.wait([task])
            else:
                await one(engine)

    engine = pageant.Engine(
        checkpoint.path,
        placement="one",
        wire=wire,
        threads=1,
        num_blocks=22,
        block_size=8,
        max_model_len=160,
        max_num_seqs=16,
        max_num_batched_tokens=64,
    )
    async with engine:
        left = list(range(REQUESTS))
        await asyncio.gather(*(worker(engine, left) for _ in range(CONCURRENT)))
        async with asyncio.timeout(120):
            while True:
                scheduler, pool = await engine.scheduler_statistics(), await engine.pool_statistics()
                if not (scheduler.num_running or scheduler.num_waiting or pool.blocks_held):
                    break
        assert engine._session.frontend.num_open == 0
        counters = scheduler.counters
        assert counters["submitted"] == counters["ended"]
        assert pool.blocks_free == pool.num_blocks
        nodes = await engine.statistics()
        assert all(node.refused == 0 and not node.dead_letters for node in nodes)
        # asks of this test itself apart, no actor has a background task left
        assert {name: actor.tasks for name, actor in nodes[0].actors.items() if name == "frontend"} == {
            "frontend": 0
        }
    happened = {"preemptions", "chunk_splits", "stops_by_string", "tokens_cached"}
    assert {name: counters[name] for name in happened if counters[name] < 100} == {}
    aborts = sum(value for name, value in counters.items() if name.startswith("aborts"))
    assert aborts >= 100 and pool.evictions >= 100
    assert ends["left"] and ends["stop"] and ends["length"], ends
