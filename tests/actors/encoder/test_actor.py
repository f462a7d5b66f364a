"""The encoder's shell: requests that carry the same image wait for one another."""

from __future__ import annotations

import asyncio

import pytest

from pageant.actors.encoder.actor import Encoder
from pageant.models.vision.processing import ImageRefused
from tests.actors.encoder.test_cache import IMAGE


class Stage:
    """An encoder whose encodings end when the test says so."""

    def __init__(self) -> None:
        self.encoder = Encoder(Encoder.Options(model="none"))
        self.encoder.offload = self.offload
        self.begun: list[asyncio.Future] = []

    async def offload(self, function):
        self.begun.append(asyncio.get_running_loop().create_future())
        return await self.begun[-1]

    def ask(self) -> asyncio.Task:
        return asyncio.ensure_future(self.encoder._encode_once(b"file", b"pixels", lambda: IMAGE))


async def turns() -> None:
    """Let every task go on until it waits."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_a_request_that_is_cancelled_leaves_its_image_to_the_next_that_waits_for_it():
    stage = Stage()
    first, second, third = stage.ask(), stage.ask(), stage.ask()
    await turns()
    first.cancel()
    await turns()
    assert len(stage.begun) == 2 and not (second.done() or third.done())
    stage.begun[1].set_result(IMAGE)
    assert await second is await third is IMAGE
    assert not stage.encoder._in_work


async def test_an_image_that_is_refused_is_refused_to_all_who_wait_for_it():
    stage = Stage()
    asked = [stage.ask(), stage.ask()]
    await turns()
    stage.begun[0].set_exception(ImageRefused("too large"))
    for one in asked:
        with pytest.raises(ImageRefused, match="too large"):
            await one
    assert len(stage.begun) == 1
