"""Both ends of an ask: the handler's, which takes the outcome, and the asker's, which waits for it.

A `Reply` is the handler's end. `Answer` and `Items` are the asker's, and are also the `Reply` when asker and
actor share a node. `RemoteReply` in `remote_reply` is the handler's end for an asker elsewhere.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from pageant.protocol.errors import PageantError

# Items that a stream may be ahead of its consumer.
STREAM_CREDIT = 64


class Reply(Protocol):
    """Takes the outcome of a handler. All methods but `item` are called once, at the end."""

    @property
    def streams(self) -> bool:
        """Tell whether it takes more than one reply."""

    def resolve(self, message: Any) -> None:
        """Take the one reply of an ask; None if the handler had none to give."""

    async def item(self, message: Any) -> None:
        """Take the next reply of a stream; return when the consumer can take another."""

    def end(self) -> None:
        """End a stream that is complete."""

    def fail(self, error: PageantError) -> None:
        """Take the error of a handler that raised, or will never run."""


class Answer:
    """Reply, awaited through `future`."""

    __slots__ = ("future",)
    streams = False

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.future: asyncio.Future[Any] = loop.create_future()

    def resolve(self, message: Any) -> None:
        if not self.future.done():
            self.future.set_result(message)

    async def item(self, message: Any) -> None:
        raise AssertionError("an ask has one reply")

    def end(self) -> None:
        self.resolve(None)

    def fail(self, error: PageantError) -> None:
        if not self.future.done():
            self.future.set_exception(error)


class Items:
    """Any number of replies, consumed one by one. The producer waits while `credit` replies are unread."""

    __slots__ = (
        "_buffer",
        "_consumer",
        "_done",
        "_error",
        "_loop",
        "_producer",
        "_taken",
        "credit",
        "on_taken",
    )
    streams = True

    def __init__(self, loop: asyncio.AbstractEventLoop, credit: int = STREAM_CREDIT) -> None:
        self._loop = loop
        self._buffer: deque[Any] = deque()
        self._consumer: asyncio.Future[None] | None = None
        self._producer: asyncio.Future[None] | None = None
        self._error: PageantError | None = None
        self._done = False
        self._taken = 0
        self.credit = credit
        # Grants a remote producer more credit.
        self.on_taken: Callable[[int], None] | None = None

    def push(self, message: Any) -> None:
        """Add an item whatever the credit: a remote producer counts its own."""
        self._buffer.append(message)
        _wake(self._consumer)

    async def item(self, message: Any) -> None:
        self.push(message)
        while len(self._buffer) >= self.credit and not self._done:
            self._producer = self._loop.create_future()
            await self._producer

    def resolve(self, message: Any) -> None:
        if message is not None:
            self.push(message)
        self.end()

    def end(self) -> None:
        self._done = True
        _wake(self._consumer)

    def fail(self, error: PageantError) -> None:
        self._error = self._error or error
        self.end()

    async def next(self) -> Any:
        """Return the next item.

        Raises:
            StopAsyncIteration: the stream is complete.
            PageantError: it failed.
        """
        while not self._buffer:
            if self._error is not None:
                raise self._error
            if self._done:
                raise StopAsyncIteration
            self._consumer = self._loop.create_future()
            await self._consumer
        item = self._buffer.popleft()
        _wake(self._producer)
        self._count_taken()
        return item

    def _count_taken(self) -> None:
        """Grant credit back in halves, rather than item by item."""
        self._taken += 1
        if self.on_taken is not None and self._taken * 2 >= self.credit:
            self.on_taken(self._taken)
            self._taken = 0

    def close(self) -> None:
        """Note that the consumer left. A producer that waits goes on, and is then cancelled."""
        self._done = True
        _wake(self._producer)


def _wake(waiter: asyncio.Future[None] | None) -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(None)
