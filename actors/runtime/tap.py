"""A tap on a node: keeps what its actors are told, for a recorder that takes it away in pieces.

It is looked at where a message enters a mailbox, and encodes there, so that nothing of it is held in memory but
bytes, of which there are never more than `BYTES_MAX`: beyond that messages are dropped and counted, and whoever the
messages are for never waits. What the runtime says to itself (agents, the supervisor) is not recorded.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from pageant.actors.runtime.redaction import Redaction
from pageant.protocol.codec import Codec
from pageant.protocol.recording import EVERY_KIND, Recorded, RecordedMessage

if TYPE_CHECKING:
    from pageant.actors.runtime.cell import Cell
    from pageant.actors.runtime.mailbox import Envelope
    from pageant.actors.runtime.node import Node

log = logging.getLogger("pageant.tap")

BYTES_MAX = 32 * 2**20  # that wait to be taken away
PIECE_BYTES = 2**20  # that one message to the recorder holds, about
GATHER_SECONDS = 0.05  # that a message waits for others
SILENCE_SECONDS = 5.0  # after which an empty piece says that there was nothing
PATIENCE_SECONDS = 60.0  # with a recorder that takes nothing while there is no more room


class Tap:
    """One recording, on one node.

    Args:
        name: the recording's. Aliases of a recording without texts depend on it.
        kinds: of messages that are kept, or `*`.
        give_up: called when the recorder seems to be gone.
    """

    def __init__(
        self, node: Node, name: str, kinds: Iterable[str], *, texts: bool, give_up: Callable[[], object]
    ) -> None:
        self.name = name
        self._give_up, self._taken_at = give_up, node.clock.now()
        self._node = node
        self._kinds = frozenset(kinds)
        self._all = EVERY_KIND in self._kinds
        self._redaction = None if texts else Redaction(name.encode())
        self._codec = Codec()
        self._offset = (
            node.clock.wall() - node.clock.now()
        )  # once: a clock that is set meanwhile moves nothing
        self._kept: list[RecordedMessage] = []
        self._bytes = self._dropped = 0
        self._came = asyncio.Event()
        self._ended = False
        self._first = True

    def take(self, cell: Cell, envelope: Envelope) -> None:
        """An actor is given this."""
        message = envelope.message
        kind = type(message).__name__
        if not self._all and kind not in self._kinds:
            return
        try:
            if self._redaction is not None:
                message = self._redaction.strip(message)
            if message is None or self._is_full():
                return
            body, arrays = self._codec.encode(message)
        except (TypeError, ValueError, OverflowError) as error:  # it may never have had to be encoded
            log.warning("a %s from %s is not recorded: %s", kind, envelope.sender, error)
            self._dropped += 1
            return
        frames = tuple(bytes(memoryview(array).cast("B")) if array.size else b"" for array in arrays)
        self._bytes += len(body) + sum(map(len, frames))
        self._kept.append(
            RecordedMessage(
                at=self._offset + self._node.clock.now(),
                kind=kind,
                sender=envelope.sender,
                sender_incarnation=envelope.from_incarnation,
                to=cell.name,
                to_incarnation=cell.incarnation,
                body=body,
                arrays=frames,
            )
        )
        self._came.set()

    def _is_full(self) -> bool:
        """Whether there is no room for what has just come, which is dropped then."""
        if self._bytes < BYTES_MAX:
            return False
        self._dropped += 1
        if self._node.clock.now() - self._taken_at > PATIENCE_SECONDS:
            self._give_up()
        return True

    def end(self) -> None:
        """What is kept is the last."""
        self._ended = True
        self._came.set()

    async def next(self) -> Recorded | None:
        """The next piece; None when there is no more."""
        if self._first:  # says at once that it keeps
            self._first = False
            return self._piece()
        if not self._kept and not self._ended:
            self._came.clear()
            try:
                async with asyncio.timeout(SILENCE_SECONDS):
                    await self._came.wait()
            except TimeoutError:
                return self._piece()
        if not self._ended and self._bytes < PIECE_BYTES:
            await asyncio.sleep(GATHER_SECONDS)
        return self._piece() if self._kept or not self._ended or self._dropped else None

    def _piece(self) -> Recorded:
        self._taken_at = self._node.clock.now()
        size = count = 0
        while count < len(self._kept) and size < PIECE_BYTES:
            one = self._kept[count]
            size += len(one.body) + sum(map(len, one.arrays))
            count += 1
        messages, self._kept = tuple(self._kept[:count]), self._kept[count:]
        dropped = 0
        if not self._kept:  # they came after all of these
            dropped, self._dropped = self._dropped, 0
        self._bytes -= size
        node = self._node
        return Recorded(node=node.name, incarnation=node.incarnation, messages=messages, dropped=dropped)
