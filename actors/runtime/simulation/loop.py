"""An event loop with virtual time: it jumps to the next timer when there is nothing else to do.

Everything that runs belongs to a process, the one in whose context it was scheduled. Callbacks of a stopped
process wait until it goes on. Callbacks of a dead process never run: no `finally`, no last message, as after a
`kill -9`. Tasks hash by the order in which they were made, since `asyncio.wait` and others keep them in sets.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import sys
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar
from typing import Any, TypeVar

T = TypeVar("T")

# The most callbacks at one moment of time. More are an endless loop.
AT_ONCE_MAX = 100_000


class Stuck(AssertionError):
    """Nothing is left to run, or too many callbacks run at one moment."""


class Process:
    """A simulated process, which a fault may kill or stop: owns its callbacks."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.dead = False
        self.stopped = False
        self.held: deque[asyncio.Handle] = deque()


PROCESS: ContextVar[Process | None] = ContextVar("pageant_process", default=None)


# As abstract it asks for sockets and subprocesses, which nothing here has.
_Loop: Any = asyncio.AbstractEventLoop


class NumberedTask(asyncio.Task[T]):
    """A task whose hash does not depend on its address in memory."""

    _numbers = itertools.count()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._number = next(NumberedTask._numbers)
        super().__init__(*args, **kwargs)

    def __hash__(self) -> int:
        return self._number


class VirtualLoop(_Loop):  # type: ignore[misc]
    """Runs callbacks in a fixed order. No files, no sockets, no threads. Times are seconds of virtual time."""

    def __init__(self) -> None:
        self._now = 0.0
        self._ready: deque[asyncio.Handle] = deque()
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._sequence = itertools.count()
        self._at_once = 0
        self._closed = False
        self.errors: list[dict[str, Any]] = []
        # Called after every callback, for a test's checks.
        self.after_callback: Callable[[], None] | None = None

    # Scheduling.

    def time(self) -> float:
        return self._now

    def call_soon(
        self, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon

    def call_at(
        self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._timers, (when, next(self._sequence), timer))
        return timer

    def call_later(
        self, delay: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Do nothing: a cancelled timer is skipped when its time comes."""

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(
        self, coro: Any, *, name: str | None = None, context: Context | None = None
    ) -> asyncio.Task[Any]:
        return NumberedTask(coro, loop=self, name=name, context=context)

    # Running.

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run until the coroutine is done.

        Raises:
            Stuck: it never will be.
        """
        hooks = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(finalizer=self._end_generator)
        self._at_once = 0
        events._set_running_loop(self)
        try:
            task: asyncio.Task[T] = self.create_task(coroutine)
            while not task.done():
                self._run_one()
            return task.result()
        finally:
            events._set_running_loop(None)
            sys.set_asyncgen_hooks(*hooks)

    def _run_one(self) -> None:
        handle: Any
        if self._ready:
            self._at_once += 1
            if self._at_once > AT_ONCE_MAX:
                raise Stuck(f"{AT_ONCE_MAX} callbacks at {self._now:.6f} s; the next is {self._ready[0]}")
            handle = self._ready.popleft()
        elif self._timers:
            when, _, handle = heapq.heappop(self._timers)
            if when > self._now:
                self._now, self._at_once = when, 0
        else:
            raise Stuck(f"nothing is left to happen at {self._now:.6f} s")
        if handle._cancelled:
            return
        process = handle._context.get(PROCESS)
        if process is not None and (process.dead or process.stopped):
            # The callbacks of a dead process are cleaned up at the end of the simulation.
            process.held.append(handle)
            return
        handle._run()
        if self.after_callback is not None:
            self.after_callback()

    def resume(self, process: Process) -> None:
        """Let a stopped process go on with the callbacks that it has missed."""
        process.stopped = False
        self._ready.extend(process.held)
        process.held.clear()

    def _end_generator(self, generator: Any) -> None:
        if not self._closed:
            self.call_soon(lambda: self.create_task(generator.aclose()))

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.errors.append(context)

    # What asyncio asks of a loop.

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return not self._closed

    def is_closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        self._closed = True
        self._ready.clear()
        self._timers.clear()
