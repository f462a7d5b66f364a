"""The codec within a node: `wire: always` sends every message through it.

A message goes through exactly what it would between processes, except the sockets.
"""

from __future__ import annotations

from typing import Any

from pageant.actors.runtime.replies import Reply
from pageant.protocol.codec import Codec
from pageant.protocol.errors import PageantError
from pageant.protocol.failure import Failure, error_of, failure_of


class Wire:
    """Encodes and decodes within one node."""

    def __init__(self) -> None:
        self.codec = Codec()

    def round_trip(self, message: Any) -> Any:
        """Return the message as a receiver in another process would get it."""
        body, arrays = self.codec.encode(message)
        frames = [memoryview(array).cast("B") if array.size else b"" for array in arrays]
        return self.codec.decode(type(message).__name__, body, frames)

    def wrap(self, reply: Reply | None) -> Reply | None:
        """Return a reply whose messages go through the codec too."""
        return WiredReply(self, reply) if reply is not None else None


class WiredReply:
    """Sends a handler's outcome through the codec before it reaches the asker."""

    def __init__(self, wire: Wire, reply: Reply) -> None:
        self._wire, self._reply, self.streams = wire, reply, reply.streams

    def resolve(self, message: Any) -> None:
        self._reply.resolve(self._wire.round_trip(message) if message is not None else None)

    async def item(self, message: Any) -> None:
        await self._reply.item(self._wire.round_trip(message))

    def end(self) -> None:
        self._reply.end()

    def fail(self, error: PageantError) -> None:
        failure: Failure = self._wire.round_trip(failure_of(error, ""))
        self._reply.fail(error_of(failure))
