"""A loop in a thread of its own: how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import threading

from pageant.actors.runtime.loop_thread import LoopThread


def test_it_ends_though_a_task_misses_that_it_is_cancelled():
    before = set(threading.enumerate())
    thread = LoopThread("pageant-test")
    began = threading.Event()

    async def miss() -> None:
        began.set()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        await asyncio.Event().wait()

    missed = thread.run(miss())
    assert began.wait(10)
    thread.stop()
    assert missed.cancelled()
    assert set(threading.enumerate()) == before
