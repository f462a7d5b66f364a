"""Requests that run change their replicas, with their KV through a store: the tokens are those of one place."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator

import pytest

import pageant
from pageant import SamplingParams
from pageant.protocol.errors import PageantError
from pageant.protocol.replicas import MoveRequests, RequestsMoved
from pageant.protocol.routing import GetRouterStatistics
from pageant.protocol.scheduling import GetSchedulerStatistics
from pageant.scripts.chaos.load import Stream, difference, mixed_requests, undisturbed
from tests.integration.stores import store_at_rest

SETTINGS = {"placement": "one", "dtype": "float32", "threads": 1, "max_num_seqs": 24, "seed": 5}
PLACES = ("replica-0/", "replica-1/")
ASKED = mixed_requests(18, 60)
MOVES = 100
EVERYTHING = 1 << 20
"""More tokens than all requests have."""


@pytest.fixture(scope="module")
def engine(checkpoint) -> Iterator[pageant.Engine]:
    """Two replicas that share a store, and draft. The first gets all requests, and has memory for a third of them."""
    drafts = {"method": "ngram", "tokens": 3, "adaptive": False}
    engine = pageant.Engine(
        checkpoint.path,
        replicas=2,
        store_memory="16MiB",
        speculation=drafts,
        num_blocks=48,
        actors={"router": {"options": {"routing": "tenant"}}},
        **SETTINGS,
    )
    asyncio.run(engine.start())
    yield engine
    asyncio.run(engine.close())


@pytest.fixture(scope="module")
def right(checkpoint) -> list[pageant.RequestOutput]:
    """The outputs of one engine."""

    async def alone() -> list[pageant.RequestOutput]:
        async with pageant.Engine(checkpoint.path, num_blocks=160, **SETTINGS) as engine:
            return await undisturbed(engine, ASKED)

    return asyncio.run(alone())


def assert_same(found: list[pageant.RequestOutput], right: list[pageant.RequestOutput]) -> None:
    assert [difference(*pair) for pair in zip(found, right, strict=True)] == [None] * len(right)


async def move(engine: pageant.Engine, source: str, target: str) -> RequestsMoved:
    request = MoveRequests(source=source, target=target, num_tokens=EVERYTHING)
    return await engine.ask("frontend", request)


def test_a_hundred_moves_of_one_stream_change_no_token(engine, checkpoint):
    rng = random.Random(3)
    prompt = [rng.randrange(4, checkpoint.vocab_size) for _ in range(40)]
    greedy = SamplingParams(temperature=0, max_tokens=200, ignore_eos=True, logprobs=1)

    async def run() -> None:
        moves, tokens = 0, []
        async for output in engine.generate(prompt, greedy):
            tokens += output.outputs[0].new_token_ids
            if moves < MOVES and not output.finished:
                found = [await move(engine, *pair) for pair in (PLACES, PLACES[::-1])]
                moves += found[0].num_sequences or found[1].num_sequences
        assert tokens == checkpoint.greedy(prompt, 200)
        assert len(output.outputs[0].logprobs) == 200
        assert moves == MOVES
        ended = [await engine.ask(f"{place}scheduler", GetSchedulerStatistics()) for place in PLACES]
        assert sum(one.counters["moved"] for one in ended) >= MOVES - 1, "the last may have come too late"
        found = await store_at_rest(engine)
        assert found.restored and not found.spoilt, "later, each replica has most blocks itself"

    asyncio.run(run())


def test_requests_with_all_features_are_the_same_when_they_move_back_and_forth(engine, right):
    """Penalties, grammars, log-probabilities, stop strings, several samples and beams, all with drafts."""

    async def run() -> None:
        streams = [Stream(engine, asked) for asked in ASKED]
        reading = asyncio.gather(*(stream.read() for stream in streams))
        places, moved = PLACES, 0
        while not reading.done():
            moved += (await move(engine, *places)).num_sequences
            places = places[::-1]
            await asyncio.wait([reading], timeout=0.02)
        assert_same(await reading, right)
        assert moved >= 2 * len(ASKED)
        assert not (await store_at_rest(engine)).spoilt

    asyncio.run(run())


def test_the_router_moves_requests_from_where_memory_is_short(engine, right):
    async def router_moves() -> int:
        return (await engine.ask("router", GetRouterStatistics())).moved

    async def run() -> None:
        before = await router_moves()
        async with asyncio.timeout(120):
            # At first, both replicas may rest from a move in the test before.
            while await router_moves() == before:
                assert_same(await undisturbed(engine, ASKED), right)
        assert not (await store_at_rest(engine)).spoilt

    asyncio.run(run())


@pytest.mark.parametrize(
    ("source", "target", "num_tokens", "message"),
    [
        (
            "replica-7/",
            PLACES[1],
            1,
            "source is 'replica-7/'; expected a replica, of which there are 'replica-0/'",
        ),
        ("", PLACES[1], 1, "source is ''; expected a replica"),
        (PLACES[0], "replica-7/", 1, "target is 'replica-7/'"),
        (PLACES[0], PLACES[0], 1, "expected another replica"),
        (*PLACES, -1, "num_tokens is -1"),
    ],
)
def test_moves_that_cannot_be_are_refused(engine, source, target, num_tokens, message):
    request = MoveRequests(source=source, target=target, num_tokens=num_tokens)
    with pytest.raises(PageantError, match=message):
        asyncio.run(engine.ask("frontend", request))
