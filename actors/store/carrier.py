"""Carriers, which bring the bytes of slots from other hosts' stores. See docs/writing-a-carrier.md."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pageant.actors.runtime import Actor
from pageant.actors.runtime.classes import load_object
from pageant.protocol.arrays import int64
from pageant.protocol.errors import TopologyError
from pageant.protocol.plugins import plugins_of
from pageant.protocol.storing import ReadStored, StoredBytes

UInt8 = npt.NDArray[np.uint8]
FRAME_BYTES = 1 << 20
"""Bytes of a message, at most: others that share the link wait no longer than it takes."""
FRAMES_AHEAD = 8
"""Messages on their way at once."""
SILENCE_SECONDS = 30.0
"""The longest wait for a message."""
LINK = "link"


class Region(NamedTuple):
    """Bytes of a store's memory."""

    start: int
    size: int


class Peer(NamedTuple):
    """Store of another host."""

    name: str
    epoch: int
    """Its incarnation: another one has other memory."""
    offer: bytes
    """What its carrier's `offer` returned."""


class Carrier(ABC):
    """Base of carriers. A store makes one, with its own memory, before it takes any message.

    Whatever goes wrong, no block is used that is not whole: the store checks each slot after it was carried.
    """

    def __init__(self, store: Actor, memory: UInt8) -> None:
        """Args: memory: uint8 [bytes], all memory of this store. Others write to it at any time."""
        self.store, self.memory = store, memory

    def offer(self) -> bytes:
        """Return what other hosts' carriers need to know to pull from this memory; nothing by default."""
        return b""

    @abstractmethod
    async def pull(self, peer: Peer, sources: Sequence[Region], into: Sequence[Region]) -> int:
        """Copy regions of a peer's memory into regions of this memory, of the same sizes, in any order.

        Returns the bytes that were copied; with fewer than asked for, none is used. Does not block the event loop.
        Once it has returned, raised or been cancelled, it writes no more. May raise any `Exception`.
        """

    def close(self) -> None:  # noqa: B027 - many have nothing to free
        """Free everything. Called once, when the store stops."""


class LinkCarrier(Carrier):
    """Carries bytes as messages over the nodes' own links: ZeroMQ, encrypted where the topology has keys."""

    async def pull(self, peer: Peer, sources: Sequence[Region], into: Sequence[Region]) -> int:
        """See `Carrier`."""
        starts, sizes = int64([one.start for one in sources]), int64([one.size for one in sources])
        request = ReadStored(epoch=peer.epoch, starts=starts, sizes=sizes)
        room = _Room(self.memory, into)
        frames = self.store.stream(peer.name, request, SILENCE_SECONDS, credit=FRAMES_AHEAD)
        async for frame in frames:
            copying = asyncio.ensure_future(self.store.offload_beside("carrier", room.write, frame.data))
            try:
                await asyncio.shield(copying)
            except asyncio.CancelledError:
                await copying  # it may still write
                raise
        return room.num_written


class _Room:
    """Regions of memory that are filled one after another."""

    def __init__(self, memory: UInt8, regions: Sequence[Region]) -> None:
        self._memory = memory
        self._left = list(regions)[::-1]
        self.num_written = 0

    def write(self, data: UInt8) -> None:
        """Write the next bytes, uint8 [B]; those that there is no room for are passed over."""
        while len(data) and self._left:
            start, size = self._left.pop()
            count = min(size, len(data))
            self._memory[start : start + count] = data[:count]
            self.num_written += count
            data = data[count:]
            if count < size:
                self._left.append(Region(start + count, size - count))


async def frames_of(store: Actor, memory: UInt8, regions: Sequence[Region]) -> AsyncIterator[StoredBytes]:
    """Yield the bytes of regions, in messages of at most FRAME_BYTES.

    A message of one region is sent from where it lies: whoever asks has pinned it, and checks what came. Others are
    gathered first, off the event loop.
    """
    memory = memory.view()
    memory.flags.writeable = False
    for parts in _cut(regions):
        views = [memory[part.start : part.start + part.size] for part in parts]
        data = views[0] if len(views) == 1 else await store.offload_beside("carrier", np.concatenate, views)
        yield StoredBytes(data=data)


def _cut(regions: Sequence[Region]) -> Iterator[list[Region]]:
    """Yield pieces of regions, in their order, that come to at most FRAME_BYTES together. Neighbours are joined."""
    pieces: list[Region] = []
    room = FRAME_BYTES
    for region in regions:
        start, left = region
        while left:
            count = min(left, room)
            if pieces and sum(pieces[-1]) == start:
                pieces[-1] = Region(pieces[-1].start, pieces[-1].size + count)
            else:
                pieces.append(Region(start, count))
            start, left, room = start + count, left - count, room - count
            if not room:
                yield pieces
                pieces, room = [], FRAME_BYTES
    if pieces:
        yield pieces


def carrier_class(name: str, place: str = "carrier") -> type[Carrier]:
    """Return the class of a carrier: `link`, `module:Class`, or a plugin's.

    Raises:
        TopologyError: there is none, or it is no carrier.
    """
    if name == LINK:
        return LinkCarrier
    if ":" not in name and name not in plugins_of("carriers"):
        known = ", ".join(plugins_of("carriers"))
        raise TopologyError(
            place,
            f"found {name!r}; expected link, module:Class of your own"
            + (f", or a plugin: {known}" if known else ""),
        )
    found = load_object(name, place, "carriers")
    if not (isinstance(found, type) and issubclass(found, Carrier)):
        raise TopologyError(place, f"{name!r} is not a subclass of pageant.actors.store.carrier.Carrier")
    return found
