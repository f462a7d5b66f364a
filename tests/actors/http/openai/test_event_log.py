"""Whoever follows a log gets every event after the one that they name, once, whenever they come."""

from __future__ import annotations

import asyncio

from pageant.actors.http.openai.event_log import EventLog


async def read(log, after=-1):
    return b"".join([events async for events in log.follow(after)])


async def test_followers_get_what_comes_after_the_event_that_they_name():
    log = EventLog()
    await log.write([b"0", b"1"])
    early, late = asyncio.create_task(read(log)), asyncio.create_task(read(log, 2))
    await asyncio.sleep(0)
    for events in ([b"2"], [], [b"3", b"4"]):
        await log.write(events)
        await asyncio.sleep(0)
    assert not early.done()
    log.close()
    assert (await early, await late, await read(log, 0), await read(log, 4)) == (
        b"01234",
        b"34",
        b"1234",
        b"",
    )
    assert await read(log, -9) == b"01234" and log.num_bytes == 5


async def test_a_follower_that_leaves_costs_nothing():
    log = EventLog()
    following = log.follow(-1)
    waiting = asyncio.ensure_future(anext(following))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await following.aclose()
    await log.write([b"0"])
    log.close()
    assert await read(log) == b"0"
