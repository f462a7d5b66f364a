"""The handler's end of an ask that came from another node."""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

from pageant.protocol.envelope import Mode
from pageant.protocol.errors import PageantError, PeerGone
from pageant.protocol.failure import failure_of
from pageant.protocol.message import Message


class Outcomes(Protocol):
    """Carries the outcomes of asks back to the nodes that sent them."""

    def awaited(self, node: str, number: int, reply: RemoteReply) -> bool:
        """Tell whether the asker still wants this answer."""

    def send_outcome(self, node: str, number: int, mode: Mode, actor: str, message: Message | None) -> bool:
        """Send a handler's answer to an asker. Return False where it cannot be reached."""

    def done(self, node: str, number: int) -> None:
        """Forget an ask that is answered."""


class RemoteReply:
    """A reply that goes back over the network: one message, a stream of items on credit, or a failure."""

    __slots__ = ("_actor", "_credit", "_node", "_number", "_remote", "_waiter", "streams")

    def __init__(
        self, remote: Outcomes, node: str, number: int, actor: str, streams: bool, credit: int
    ) -> None:
        self._remote, self._node, self._number, self._actor = remote, node, number, actor
        self.streams, self._credit = streams, credit
        self._waiter: asyncio.Future[None] | None = None

    def resolve(self, message: Any) -> None:
        self._finish(Mode.REPLY, message)

    async def item(self, message: Any) -> None:
        if not self._remote.awaited(self._node, self._number, self):
            # The handler is about to be cancelled.
            return
        if not self._remote.send_outcome(self._node, self._number, Mode.ITEM, self._actor, message):
            raise PeerGone(f"{self._node}, where {self._actor} streams to, cannot be reached")
        self._credit -= 1
        while self._credit <= 0:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter

    def grant(self, count: int) -> None:
        """Let the consumer take `count` more items."""
        self._credit += count
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def end(self) -> None:
        self._finish(Mode.END, None)

    def fail(self, error: PageantError) -> None:
        self._finish(Mode.ERROR, failure_of(error, self._actor))

    def _finish(self, mode: Mode, message: Message | None) -> None:
        if self._remote.awaited(self._node, self._number, self):
            self._remote.send_outcome(self._node, self._number, mode, self._actor, message)
            self._remote.done(self._node, self._number)
