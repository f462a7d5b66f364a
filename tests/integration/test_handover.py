"""Prompts are computed by one replica and outputs by another: the tokens are those of one engine, whoever dies."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Iterator

import pytest

import pageant
from pageant import SamplingParams
from pageant.protocol.errors import TopologyError
from pageant.protocol.scheduling import GetSchedulerStatistics
from pageant.scripts.chaos.load import Stream, difference, mixed_requests
from tests.integration.stores import store_at_rest

SETTINGS = {"dtype": "float32", "threads": 1, "num_blocks": 160, "max_num_seqs": 24, "seed": 5}
KINDS = {"prefill": {"count": 1}, "decode": {"count": 1}}
NODES = {
    "front": {},
    "step-{replica}": {"process": True},
    "compute-{replica}": {"process": True},
    "shared": {"process": True},
}
ACTORS = {
    "router": {"node": "shared", "options": {"handover": "always"}},
    "store": {"node": "shared", "options": {"memory": "16MiB"}},
    **{name: {"node": "step-{replica}"} for name in ("scheduler", "blocks", "detokenizer")},
    **{name: {"node": "compute-{replica}"} for name in ("executor", "grammar")},
}
ASKED = mixed_requests(18, 60)
GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
BEGUN = 4


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
    """A replica for prompts and one for outputs, with the store and the router in a process of their own."""
    engine = pageant.Engine(checkpoint.path, replicas=KINDS, nodes=NODES, actors=ACTORS, **SETTINGS)
    asyncio.run(engine.start())
    yield engine
    asyncio.run(engine.close())


async def handed_over(engine: pageant.Engine) -> int:
    """How many requests the replica for prompts has handed over."""
    found = await engine.ask("replica-0/scheduler", GetSchedulerStatistics())
    return found.counters["handed_over"]


def test_at_most_a_block_of_the_prompt_is_computed_where_the_output_is(engine, checkpoint):
    """This model computes a prompt as soon as its blocks come back, so a busy machine may not wait for each of them."""
    rng = random.Random(2)
    prompts = [[rng.randrange(4, checkpoint.vocab_size) for _ in range(200)] for _ in range(5)]

    async def restored_of(asked: list[int]) -> int:
        before = (await store_at_rest(engine)).restored
        found = await engine.complete(asked, GREEDY)
        assert found.outputs[0].token_ids == checkpoint.greedy(asked, 6)
        assert found.num_cached_tokens == 0, "what comes back from the store was computed for this request"
        return (await store_at_rest(engine)).restored - before

    async def run() -> None:
        assert 200 // 16 in [await restored_of(asked) for asked in prompts]

    asyncio.run(run())


def test_the_replica_that_computes_a_prompt_says_what_was_cached_of_it(engine, checkpoint):
    rng = random.Random(3)
    asked = [rng.randrange(4, checkpoint.vocab_size) for _ in range(100)]

    async def run() -> None:
        found = [await engine.complete(asked, GREEDY) for _ in range(2)]
        assert [one.num_cached_tokens for one in found] == [0, 99], "all but the last, which is computed"

    asyncio.run(run())


def test_requests_with_all_features_are_the_same_when_they_are_handed_over(engine, right):
    """Penalties, grammars, log-probabilities, stop strings, several samples and beams."""

    async def run() -> None:
        before = await handed_over(engine)
        assert_same(await run_all(engine), right)
        assert await handed_over(engine) - before >= len(ASKED) // 2
        found = await store_at_rest(engine)
        assert found.restored > 0
        assert not found.spoilt

    asyncio.run(run())


@pytest.mark.parametrize("nodes", [("shared",), ("compute-0", "step-1"), ("compute-1", "step-0")])
def test_nothing_is_lost_or_changed_when_processes_die_in_the_midst_of_handovers(engine, right, nodes):
    """Those of the store and the router; and of each replica those that compute and those that plan."""

    async def run() -> None:
        pids = [one.pid for one in await engine.statistics() if one.node in nodes]
        assert len(pids) == len(nodes)

        async def kill() -> None:
            for pid in pids:
                os.kill(pid, signal.SIGKILL)

        assert_same(await run_all(engine, kill), right)

    asyncio.run(run())


@pytest.mark.parametrize(
    ("settings", "place", "message"),
    [
        ({"replicas": {"prefill": {"count": 2}}}, "replicas", "only kinds of role prefill"),
        ({"replicas": {}}, "replicas", "found no kinds"),
        ({"replicas": {"fast": {"count": 2}}}, "replicas.fast", "found the role 'fast'"),
        ({"replicas": {"decode": {"count": 0}}}, "replicas.decode.count", "expected at least 1"),
        ({"replicas": {"decode": {"counts": 1}}}, "replicas.decode.counts", "did you mean 'count'"),
        (
            {"replicas": {"decode": {"actors": {"router": {}}}}},
            "replicas.decode.actors.router",
            "replicas own",
        ),
        (
            {
                "replicas": {
                    "prefill": {"actors": {"executor": {"options": {"block_size": 32}}}},
                    "decode": {},
                }
            },
            "replicas.decode.actors.executor.options.block_size",
            "expected 32, which prefill has",
        ),
        (
            {
                "dtype": "float32",
                "replicas": {
                    "prefill": {},
                    "decode": {"actors": {"executor": {"options": {"dtype": "bfloat16"}}}},
                },
            },
            "replicas.decode.actors.executor.options.dtype",
            "expected 'float32', which prefill has",
        ),
        (
            {"replicas": 2, "actors": {"router": {"options": {"handover": "always"}}}},
            "actors.router.options.handover",
            "no replicas of role prefill",
        ),
        ({"replicas": 2, "actors": {"router": {"options": {"handover": "often"}}}}, "handover", "expected"),
    ],
)
def test_kinds_that_cannot_be_are_refused(checkpoint, settings, place, message):
    with pytest.raises(TopologyError, match=message) as caught:
        pageant.LLM(checkpoint.path, placement="one", progress=False, **settings)
    assert place in str(caught.value)
