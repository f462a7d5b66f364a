"""The mailbox: bounded, in order, one consumer."""

from __future__ import annotations

import asyncio

import pytest

from pageant.actors.runtime.mailbox import Envelope, Mailbox


async def test_what_comes_first_is_taken_first_and_no_more_than_fits():
    box = Mailbox(asyncio.get_running_loop(), capacity=3)
    assert [box.put(Envelope(value, "x")) for value in range(4)] == [True, True, True, False]
    assert len(box) == 3
    taken = [box.take() for _ in range(4)]
    assert [envelope.message if envelope else None for envelope in taken] == [0, 1, 2, None]
    assert box.depth_max == 3


async def test_the_consumer_wakes_when_something_comes():
    box = Mailbox(asyncio.get_running_loop())
    waiting = asyncio.create_task(box.wait())
    await asyncio.sleep(0)
    assert not waiting.done()
    with pytest.raises(AssertionError, match="one consumer"):
        await box.wait()
    box.put(Envelope(1, "x"))
    await waiting
    await box.wait()  # there is something still


async def test_a_consumer_that_is_cancelled_leaves_no_waiter():
    box = Mailbox(asyncio.get_running_loop())
    waiting = asyncio.create_task(box.wait())
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    box.put(Envelope(1, "x"))
    assert [envelope.message for envelope in box.drain()] == [1]
    assert box.take() is None
