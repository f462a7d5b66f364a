"""KV in a store outlives an executor, and is found by another replica. Tokens are the same as without a store."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Awaitable, Callable, Iterator
from functools import partial

import pytest

import pageant
from pageant import SamplingParams
from pageant.protocol.errors import PageantError, PeerGone, TopologyError
from tests.integration.stores import store_at_rest, store_of

SETTINGS = {"dtype": "float32", "threads": 1, "num_blocks": 96, "max_num_seqs": 16, "seed": 5}
STORE = {"store_memory": "8MiB"}
GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
DRAWN = SamplingParams(temperature=1.0, seed=3, max_tokens=12, ignore_eos=True, logprobs=2)


def prompt(seed: int, length: int, vocab_size: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(4, vocab_size) for _ in range(length)]


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    """Ask until it holds. Each question takes a turn of the store's own."""
    async with asyncio.timeout(60):
        while True:
            if await holds():
                return


async def saved(engine: pageant.Engine, blocks: int) -> None:
    async def are_there() -> bool:
        found = await store_of(engine)
        return found.blocks >= blocks and not found.reserved

    await until(are_there)


async def is_empty(engine: pageant.Engine) -> bool:
    """Tell whether the store is in another life, with none of the blocks of the one before."""
    try:
        return not (await store_of(engine)).saved
    except PeerGone:
        return False


async def complete(engine: pageant.Engine, token_ids: list[int], params: SamplingParams):
    return await engine.complete(token_ids, params)


@pytest.fixture(scope="module")
def engine(checkpoint) -> Iterator[pageant.Engine]:
    """An executor and a store in processes of their own."""
    nodes = {"front": {}, "compute": {"process": True}, "keeper": {"process": True}}
    actors = {
        "executor": {"node": "compute"},
        "store": {"node": "keeper", "options": {"memory": "8MiB"}},
    }
    engine = pageant.Engine(checkpoint.path, placement="one", nodes=nodes, actors=actors, **SETTINGS)
    asyncio.run(engine.start())
    yield engine
    asyncio.run(engine.close())


async def kill(engine: pageant.Engine, node: str) -> None:
    (pid,) = (one.pid for one in await engine.statistics() if one.node == node)
    os.kill(pid, signal.SIGKILL)


def test_blocks_outlive_the_executor_that_computed_them(engine, checkpoint):
    """At least eight tenths of the blocks come back, and the tokens are those of an undisturbed run."""
    asked = [prompt(seed, 200, checkpoint.vocab_size) for seed in range(4)]

    async def run() -> None:
        right = [await complete(engine, one, params) for one in asked for params in (GREEDY, DRAWN)]
        await saved(engine, 4 * 12)
        await kill(engine, "compute")
        again = [await complete(engine, one, params) for one in asked for params in (GREEDY, DRAWN)]
        assert [one.outputs[0].token_ids for one in again] == [one.outputs[0].token_ids for one in right]
        found = await store_at_rest(engine)
        assert found.restored >= 0.8 * 4 * 12
        assert not found.spoilt
        for one in again[::2]:
            assert one.num_cached_tokens >= 160

    asyncio.run(run())


def test_requests_are_served_while_the_store_is_killed(engine, checkpoint):
    """What was in it is computed again, and the next store is used."""
    asked = [prompt(seed, 100, checkpoint.vocab_size) for seed in range(20, 24)]

    async def run() -> None:
        before = (await store_of(engine)).blocks
        right = [await complete(engine, one, GREEDY) for one in asked]
        await saved(engine, before + 4 * 6)
        await kill(engine, "keeper")
        again = await asyncio.gather(*(complete(engine, one, GREEDY) for one in asked))
        assert [one.outputs[0].token_ids for one in again] == [one.outputs[0].token_ids for one in right]
        await until(partial(is_empty, engine))
        more = [prompt(seed, 100, checkpoint.vocab_size) for seed in range(30, 32)]
        await asyncio.gather(*(complete(engine, one, GREEDY) for one in more))
        await saved(engine, 6)

    asyncio.run(run())


def test_a_prefix_that_one_replica_computed_is_computed_by_no_other(checkpoint):
    """At most one block of it; nothing stays reserved or pinned."""
    asked = prompt(9, 200, checkpoint.vocab_size)

    async def run() -> None:
        actors = {"router": {"options": {"routing": "round_robin"}}}
        settings = {**SETTINGS, "placement": "one", "replicas": 2, "actors": actors}
        async with pageant.Engine(checkpoint.path, **settings, **STORE) as engine:
            first = await complete(engine, asked, DRAWN)
            await saved(engine, 12)
            other = await complete(engine, asked, DRAWN)
            assert other.outputs[0].token_ids == first.outputs[0].token_ids
            assert (first.num_cached_tokens, other.num_cached_tokens) == (0, 192)
            found = await store_at_rest(engine)
            assert (found.restored, found.spoilt) == (12, 0)

    asyncio.run(run())


def test_what_a_store_has_no_memory_for_comes_back_from_its_disk(checkpoint, tmp_path):
    """The first prompts' blocks gave way to later ones, on the device and in the store's memory."""
    asked = [prompt(seed, 200, checkpoint.vocab_size) for seed in range(40, 60)]

    async def run() -> None:
        options = {"memory": "1MiB", "disk": "64MiB", "disk_path": str(tmp_path)}
        settings = {**SETTINGS, "placement": "one", "actors": {"store": {"options": options}}}
        async with pageant.Engine(checkpoint.path, **settings) as engine:
            right = []
            for one in asked:
                right.append(await complete(engine, one, GREEDY))
                await store_at_rest(engine)
            again = [await complete(engine, one, GREEDY) for one in asked[:4]]
            assert [one.outputs[0].token_ids for one in again] == [
                one.outputs[0].token_ids for one in right[:4]
            ]
            found = await store_at_rest(engine)
            assert found.spilled > 100 and found.loaded > 0
            assert not (found.spoilt or found.unloaded)

    asyncio.run(run())


@pytest.mark.parametrize(
    ("settings", "place", "message"),
    [
        ({"store_memory": "1GiB", "host_memory": "1GiB"}, "host_memory", "expected none with a store"),
        ({"store_memory": "1GiB", "enable_prefix_caching": False}, "enable_prefix_caching", "expected True"),
        ({"store_memory": "many"}, "store_memory", "expected a number of bytes"),
        ({"store_memory": 4096}, "store_memory", "1 MiB to 1 PiB"),
        ({"actors": {"store": {"options": {"memory": 0}}}}, "actors.store.options.memory", "1 MiB to 1 PiB"),
        ({"actors": {"store": {"each": "host", "count": 2}}}, "actors.store.each", "with count"),
        ({"actors": {"blocks": {"each": "host"}}}, "actors.blocks.each", "for store alone"),
        (
            {"actors": {"store": {"options": {"disk": "1GiB"}}}},
            "actors.store.options.disk",
            "there is no disk_path",
        ),
        (
            {"actors": {"store": {"options": {"carrier": "no_such_lab:Rdma"}}}},
            "actors.store.options.carrier",
            "there is no module 'no_such_lab'",
        ),
    ],
)
def test_a_store_that_cannot_be_is_refused(checkpoint, settings, place, message):
    with pytest.raises(TopologyError, match=message) as caught:
        pageant.LLM(checkpoint.path, placement="one", progress=False, **settings)
    assert place in str(caught.value)


def test_a_store_larger_than_the_memory_is_refused_with_what_there_is(checkpoint):
    with pytest.raises(
        PageantError, match=r"memory is 1048576\.00 GiB; expected at most .* GiB of memory free"
    ):
        pageant.LLM(checkpoint.path, placement="one", progress=False, store_memory=2**50)


def test_a_store_that_is_too_small_for_a_block_says_so_once_and_harms_nobody(checkpoint, caplog):
    """A block of this model takes 64 KiB, and its header some more; a sixteenth of the store is 64 KiB."""
    asked = [prompt(seed, 300, checkpoint.vocab_size)[:200] for seed in range(2)]

    async def run() -> None:
        settings = {**SETTINGS, "placement": "one", "block_size": 128}
        async with pageant.Engine(checkpoint.path, **settings, store_memory="1MiB") as engine:
            for one in asked:
                found = await complete(engine, one, GREEDY)
                assert found.outputs[0].token_ids == checkpoint.greedy(one, 12)

    asyncio.run(run())
    (said,) = [one.getMessage() for one in caplog.records if one.name == "pageant.store"]
    assert "keeps no blocks of blocks" in said and "expected at most 65536, a part in 16" in said
    assert "at least 3 MiB" in said
