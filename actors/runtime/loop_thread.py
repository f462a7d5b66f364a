"""An event loop in a thread of its own, so that user code which blocks delays no step."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from pageant.actors.runtime.loop import new_event_loop

T = TypeVar("T")

CANCEL_AGAIN_SECONDS = 0.5


class LoopThread:
    """Runs an event loop in a thread until `stop`. Other threads hand it coroutines and calls."""

    def __init__(self, name: str) -> None:
        self.loop = new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
        self.loop.run_until_complete(self._end_tasks())
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()

    @staticmethod
    async def _end_tasks() -> None:
        # A task that was just being woken may miss its cancellation (Python 3.11's `wait_for` does): cancel it again.
        while left := asyncio.all_tasks() - {asyncio.current_task()}:
            for task in left:
                task.cancel()
            done, _ = await asyncio.wait(left, timeout=CANCEL_AGAIN_SECONDS)
            await asyncio.gather(*done, return_exceptions=True)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Start a coroutine on the loop. Cancelling the future cancels it."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    def call(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Call a function on the loop, soon."""
        self.loop.call_soon_threadsafe(function, *arguments)

    def stop(self) -> None:
        """End the loop, and return when its thread is gone. Not to be called from that thread."""
        self.end()
        self._thread.join()

    def end(self) -> None:
        """End the loop, soon."""
        with contextlib.suppress(RuntimeError):  # it has ended
            self.loop.call_soon_threadsafe(self.loop.stop)
