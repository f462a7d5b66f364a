"""The mailbox of an actor: a bounded FIFO with a single consumer.

Stop, ping and cancel never wait here: the node carries them out when they come (the control lane).
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pageant.actors.runtime.replies import Reply
    from pageant.protocol.tracing import TraceContext

CAPACITY = 65_536


class Envelope:
    """A message on its way within this process, with what is needed to answer it."""

    __slots__ = ("cancelled", "from_incarnation", "message", "reply", "sender", "trace")

    def __init__(
        self,
        message: Any,
        sender: str,
        from_incarnation: int = 0,
        reply: Reply | None = None,
        trace: TraceContext | None = None,
    ) -> None:
        self.message = message
        self.sender = sender
        self.from_incarnation = from_incarnation
        self.reply = reply
        self.trace = trace
        self.cancelled = False


class Mailbox:
    """A FIFO of envelopes that refuses when full rather than grow without bound."""

    __slots__ = ("_loop", "_queue", "_waiter", "capacity", "depth_max")

    def __init__(self, loop: asyncio.AbstractEventLoop, capacity: int = CAPACITY) -> None:
        self._loop = loop
        self._queue: deque[Envelope] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self.capacity = capacity
        self.depth_max = 0
        """The most envelopes that have waited at a time."""

    def __len__(self) -> int:
        return len(self._queue)

    def put(self, envelope: Envelope) -> bool:
        """Add an envelope at the end; False when the mailbox is full."""
        queue = self._queue
        if len(queue) >= self.capacity:
            return False
        queue.append(envelope)
        waiter = self._waiter
        if waiter is not None:
            self._waiter = None
            if not waiter.done():
                waiter.set_result(None)
        return True

    def take(self) -> Envelope | None:
        """Return the next envelope, or None when there is none."""
        queue = self._queue
        depth = len(queue)
        if not depth:
            return None
        if depth > self.depth_max:
            self.depth_max = depth
        return queue.popleft()

    async def wait(self) -> None:
        """Return once there may be something to take. One waiter at a time."""
        assert self._waiter is None, "a mailbox has one consumer"
        if self._queue:
            return
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def drain(self) -> list[Envelope]:
        """Remove and return all envelopes."""
        left = list(self._queue)
        self._queue.clear()
        return left
