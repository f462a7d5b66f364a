"""The statistics of those who look: shared, at most one a period, and over when the server stops."""

from __future__ import annotations

import asyncio

import pytest

from pageant.actors.http.page.feed import StatisticsFeed
from pageant.protocol.errors import DeadlineExceeded


class Engine:
    """Observes by counting; a fault is raised in an observation's place."""

    def __init__(self, faults=()):
        self.looks, self.faults = 0, set(faults)

    async def observe(self):
        self.looks += 1
        await asyncio.sleep(0)
        if self.looks in self.faults:
            raise DeadlineExceeded("the observer is down")
        return self.looks


def feed(engine, period=0.0):
    return StatisticsFeed(engine.observe, asyncio.get_running_loop().time, period)


async def take(followed, number):
    return [await anext(followed) for _ in range(number)]


async def test_followers_share_every_look():
    engine = Engine()
    followed = feed(engine)
    first, second = followed.follow(), followed.follow()
    seen = await asyncio.gather(take(first, 5), take(second, 5))
    assert seen == [[1, 2, 3, 4, 5]] * 2 and engine.looks == 5


async def test_nothing_is_observed_while_nobody_looks():
    engine = Engine()
    followed = feed(engine)
    assert engine.looks == 0
    follower = followed.follow()
    assert await take(follower, 2) == [1, 2]
    await follower.aclose()
    for _ in range(20):
        await asyncio.sleep(0)
    assert engine.looks == 2


async def test_a_follower_that_leaves_takes_nobodys_look_along():
    engine = Engine()
    followed = feed(engine)
    leaving = asyncio.create_task(anext(followed.follow()))
    staying = asyncio.create_task(anext(followed.follow()))
    await asyncio.sleep(0)
    leaving.cancel()
    assert await staying == 1
    assert leaving.cancelled()


async def test_looks_are_a_period_apart():
    now = 100.0
    engine = Engine()
    followed = StatisticsFeed(engine.observe, lambda: now, period=3600.0)
    follower = followed.follow()
    assert await anext(follower) == 1  # at once: nobody has looked lately
    waiting = asyncio.create_task(anext(follower))
    for _ in range(20):
        await asyncio.sleep(0)
    assert engine.looks == 1 and not waiting.done()
    await followed.close()
    with pytest.raises(StopAsyncIteration):
        await waiting


async def test_an_observer_that_is_down_is_said_to_be_and_asked_again():
    follower = feed(Engine(faults={2})).follow()
    assert await take(follower, 3) == [1, None, 3]


async def test_a_closed_feed_has_nothing():
    engine = Engine()
    followed = feed(engine)
    await followed.close()
    assert [seen async for seen in followed.follow()] == [] and engine.looks == 0
