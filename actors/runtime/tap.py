"""A tap on a node: copies the messages of its actors for a recorder, which collects them in parts.

Messages are copied where they enter a mailbox, and encoded there, so that the tap holds bytes and nothing else.
It never holds more than `BYTES_MAX`: beyond that messages are dropped and counted, and their receivers never
wait. Messages between agents and the supervisor are not recorded.
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

# The most bytes that wait for the recorder.
BYTES_MAX = 32 * 2**20
# About the bytes of one message to the recorder.
PIECE_BYTES = 2**20
# Time for which a message waits for others.
GATHER_SECONDS = 0.05
# Time after which an empty part reports that there was nothing.
SILENCE_SECONDS = 5.0
# Time after which a recorder that collects nothing, while the tap is full, counts as gone.
PATIENCE_SECONDS = 60.0


class Tap:
    """One recording, on one node.

    Args:
        name: the recording's name. Aliases of a recording without texts depend on it.
        kinds: the kinds of messages to keep, or `*`.
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
        # Wall clock minus monotonic clock, read once: a clock that is set meanwhile shifts nothing.
        self._offset = node.clock.wall() - node.clock.now()
        self._kept: list[RecordedMessage] = []
        self._bytes = self._dropped = 0
        self._came = asyncio.Event()
        self._ended = False
        self._first = True

    def take(self, cell: Cell, envelope: Envelope) -> None:
        """Keep a message that an actor received."""
        message = envelope.message
        kind = type(message).__name__
        if not self._all and kind not in self._kinds:
            return
        try:
            if self._redaction is not None:
                message = self._redaction.redact(message)
            if message is None or self._is_full():
                return
            body, arrays = self._codec.encode(message)
        # A message within a node is not encoded otherwise, and may not be encodable.
        except (TypeError, ValueError, OverflowError) as error:
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
        """Tell whether there is no room for the message that has just come; it is then dropped."""
        if self._bytes < BYTES_MAX:
            return False
        self._dropped += 1
        if self._node.clock.now() - self._taken_at > PATIENCE_SECONDS:
            self._give_up()
        return True

    def end(self) -> None:
        """Send what is kept, and nothing after it."""
        self._ended = True
        self._came.set()

    async def next(self) -> Recorded | None:
        """Return the next part; None when there is no more."""
        # The first part tells the recorder that recording has begun.
        if self._first:
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
        # Dropped messages came after all that were kept.
        if not self._kept:
            dropped, self._dropped = self._dropped, 0
        self._bytes -= size
        node = self._node
        return Recorded(node=node.name, incarnation=node.incarnation, messages=messages, dropped=dropped)
