"""Replicas of a model that sees share its encoder, and compute what one engine does, whatever becomes of one."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import pageant
from pageant.protocol.encoding import EncoderStatistics, GetEncoderStatistics
from pageant.protocol.scheduling import GetSchedulerStatistics
from tests.integration.test_images import ENGINE, prompt, requests
from tests.vision_models import Seeing, images

SETTINGS: dict[str, Any] = {
    **{key: value for key, value in ENGINE.items() if key != "progress"},
    "num_blocks": 200,
    "max_num_seqs": 4,
}
STREAMED = pageant.SamplingParams(temperature=0, max_tokens=120, ignore_eos=True, detokenize=False)
BEGUN = 4
"""Tokens of a stream before its replica leaves."""
AGREED = 24
"""Tokens that transformers is asked for: later, roundings decide between tokens that are almost equally likely."""


@pytest.fixture(scope="module", params=["qwen3_vl", "gemma3", "qwen3_5"])
def seeing(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Seeing:
    """Models with positions of their own and later layers' rows, with images seen both ways, and recurrent."""
    return Seeing(request.param, Path(tmp_path_factory.mktemp("seeing")))


@pytest.fixture
def given(seeing: Seeing) -> list[Any]:
    """A text, and prompts with one, two and three images."""
    return [prompt(*one) if one[1] else one[0] for one in requests(seeing)]


@pytest.fixture
async def expected(seeing: Seeing, given: list[Any]) -> list[list[int]]:
    """What one engine generates, which begins as transformers does."""
    async with pageant.Engine(seeing.path, **SETTINGS) as engine:
        outputs = [await engine.complete(one, STREAMED) for one in given]
    tokens = [output.outputs[0].token_ids for output in outputs]
    assert [one[:AGREED] for one in tokens] == [seeing.greedy(*one, AGREED) for one in requests(seeing)]
    return tokens


async def encoder_statistics(engine: pageant.Engine) -> EncoderStatistics:
    found: EncoderStatistics = await engine.ask("encoder/0", GetEncoderStatistics())
    return found


async def used(engine: pageant.Engine) -> list[bool]:
    """Whether each replica has computed something."""
    asked = [engine.ask(f"replica-{number}/scheduler", GetSchedulerStatistics()) for number in range(2)]
    return [one.counters["submitted"] > 0 for one in await asyncio.gather(*asked)]


async def test_two_replicas_generate_as_one_and_encode_an_image_once(seeing, given, expected):
    router = {"router": {"options": {"routing": "round_robin"}}}
    async with pageant.Engine(seeing.path, replicas=2, actors=router, **SETTINGS) as engine:
        outputs = await asyncio.gather(*(engine.complete(one, STREAMED) for one in [*given, *given]))
        assert [output.outputs[0].token_ids for output in outputs] == [*expected, *expected]
        assert await used(engine) == [True, True]
        assert (await encoder_statistics(engine)).encoded == len(images()), "replicas share the cache"


async def streamed(
    engine: pageant.Engine, given: list[Any], disturb: Callable[[], Awaitable[None]]
) -> list[list[int]]:
    """Return the tokens of streams; `disturb` is awaited when each has some."""
    begun = [asyncio.Event() for _ in given]

    async def stream(one: Any, event: asyncio.Event) -> list[int]:
        async for output in engine.generate(one, STREAMED):
            if len(output.outputs[0].token_ids) >= BEGUN:
                event.set()
        tokens: list[int] = output.outputs[0].token_ids
        return tokens

    reading = [asyncio.create_task(stream(*one)) for one in zip(given, begun, strict=True)]
    await asyncio.gather(*(one.wait() for one in begun))
    await disturb()
    return await asyncio.gather(*reading)


async def test_streams_with_images_go_on_when_their_replica_is_drained(seeing, given, expected):
    async with pageant.Engine(seeing.path, replicas=2, store_memory="4MiB", **SETTINGS) as engine:

        async def drain() -> None:
            await engine.replicas.drain("replica-0", 0)

        assert await streamed(engine, given, drain) == expected
        assert [one.name for one in await engine.replicas.ls()] == ["replica-1"]


async def test_streams_with_images_go_on_when_their_replica_is_killed(seeing, given, expected):
    own = {key: value for key, value in SETTINGS.items() if key != "placement"}
    own["nodes"] = {"front": {}, "compute-{replica}": {"process": True}}
    own["actors"] = {name: {"node": "compute-{replica}"} for name in ("executor", "scheduler", "blocks")}
    async with pageant.Engine(seeing.path, replicas=2, **own) as engine:

        async def kill() -> None:
            (pid,) = (one.pid for one in await engine.statistics() if one.node == "compute-0")
            os.kill(pid, signal.SIGKILL)

        assert await streamed(engine, given, kill) == expected
