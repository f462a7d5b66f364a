"""The events of a response that is computed in the background, for whoever follows it now or comes back to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence

__all__ = ["EventLog"]


class EventLog:
    """Keeps the events of one response: event `i` of the log has the sequence number `i`."""

    def __init__(self) -> None:
        self.num_bytes = 0
        self._events: list[bytes] = []
        self._is_complete = False
        self._changed = asyncio.Event()

    async def write(self, events: Sequence[bytes]) -> None:
        """Add the next events."""
        self._events += events
        self.num_bytes += sum(map(len, events))
        self._wake()

    def close(self) -> None:
        """Mark the log as complete."""
        self._is_complete = True
        self._wake()

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def follow(self, after: int) -> AsyncGenerator[bytes, None]:
        """Yield the events whose sequence number is above `after`, as they come, until there are no more."""
        place = max(0, after + 1)
        while True:
            changed = self._changed
            if events := self._events[place:]:
                place += len(events)
                yield b"".join(events)
            elif self._is_complete:
                return
            else:
                await changed.wait()
