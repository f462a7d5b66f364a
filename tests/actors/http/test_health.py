"""Questions for an engine's health at the same time are one, and each asker has its own time."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from pageant.actors.frontend.prompts import Limits
from pageant.actors.http.health import Health
from pageant.protocol.sampling import SamplingParams

LIMITS = Limits(vocab_size=9, max_model_len=8, max_logprobs=0, defaults=SamplingParams())
SERVED = SimpleNamespace(replica="", adapter=None, limits=LIMITS)


class Service:
    """Service that begins probes, and knows which of them are open."""

    def __init__(self):
        self.models, self.open, self.num_begun = {"m": SERVED}, set(), 0
        self.is_paused = False

    def new_id(self, kind):
        return kind

    def begin(self, served, prompts, params, name, *, is_probe):
        self.num_begun += 1
        self.open.add(number := self.num_begun)
        return SimpleNamespace(close=lambda: self.open.discard(number))


@pytest.fixture
def service():
    return Service()


@pytest.fixture
def health(service):
    return Health(service, lambda replica: service.is_paused)


async def ask(health):
    """Ask for the health, and wait for the answer."""
    asker = asyncio.ensure_future(health.check(60))
    await asyncio.sleep(0)
    return asker


async def test_what_comes_answers_all_who_asked(health, service):
    askers = [await ask(health) for _ in range(3)]
    assert service.num_begun == 1
    health.stepped("")
    assert await asyncio.gather(*askers) == [True] * 3 and not service.open


async def test_who_asked_later_is_answered_though_the_first_gave_up(health, service):
    first = asyncio.ensure_future(health.check(0))
    later = await ask(health)
    assert await first is False
    assert len(service.open) == 1, "the probe goes on for the other"
    health.stepped("")
    async with asyncio.timeout(120):
        assert await later is True
    assert not service.open


async def test_of_a_paused_model_nothing_is_expected(health, service):
    asker = asyncio.ensure_future(health.check(0.01))
    await asyncio.sleep(0)
    service.is_paused = True
    assert await asker is True, "it was paused meanwhile"
    assert await health.check(0) is True and service.num_begun == 1 and not service.open


async def test_when_all_gave_up_the_next_asks_anew(health, service):
    assert await health.check(0) is False and not service.open
    asker = await ask(health)
    health.stepped("")
    assert await asker is True and service.num_begun == 2
