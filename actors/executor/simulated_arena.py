"""Memory of a store in a simulation: every process of the simulation can map it while the store's process lives.

What a block holds follows from its name. So whatever a name's first block was is the tag of that name, and every other
block of that name, in whichever store or KV cache, is held against it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from weakref import WeakKeyDictionary

import numpy as np

from pageant.actors.executor.tiers.stored_memory import (
    Bools,
    HostBlocks,
    LayoutShare,
    Region,
    SlotLayout,
    StoredMemory,
    UInt8,
)
from pageant.actors.runtime.simulation.loop import PROCESS
from pageant.protocol.arena import CHECKSUM_BYTES, HEADER, Arena, SlotState, checksums, split
from pageant.protocol.storing import MoveStored

_ARENAS: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, SimulatedArena]] = WeakKeyDictionary()
"""Memory of the stores of each simulation, by path."""


class NotWhole(AssertionError):
    """A block is to be read that some rank has not written."""


class Tags:
    """Contents of the blocks of all stores of a simulation, by name.

    Attributes:
        wrong: what was found about blocks that hold another's content.
    """

    def __init__(self) -> None:
        self._contents: dict[bytes, UInt8] = {}
        self.wrong: list[str] = []

    def put(self, name: bytes, content: UInt8) -> None:
        """Hold a block of all ranks that can be read from now on, uint8 [bytes], against the first of its name."""
        if not np.array_equal(self._contents.setdefault(name, content.copy()), content):
            self.wrong.append(f"a block can be read as {name.hex()}, and holds another's content")

    def hold(self, name: bytes, regions: Sequence[Region], parts: Sequence[UInt8]) -> None:
        """Hold a rank's part of a block that was restored against the block of its name.

        parts: uint8 [bytes] of each region.
        """
        known = self._contents.get(name)
        for region, part in zip(regions, parts, strict=True):
            own = None if known is None else known[region.start : region.start + region.num_bytes]
            if own is None or not np.array_equal(own, part):
                self.wrong.append(f"a block was restored as {name.hex()}, and holds another's content")


_TAGS: WeakKeyDictionary[asyncio.AbstractEventLoop, Tags] = WeakKeyDictionary()
"""Of each simulation."""


def tags_of(loop: asyncio.AbstractEventLoop) -> Tags:
    """Return the tags of a simulation."""
    return _TAGS.setdefault(loop, Tags())


def simulated_layout(block_bytes: int, members: int, rank: int = 0) -> SlotLayout:
    """Return the slots of blocks of so many bytes, of which each member of a group keeps what it has of them."""
    share = LayoutShare(rank=rank, num_heads=members, num_ranks=members) if members > 1 else None
    return SlotLayout.of([(1, block_bytes // 2)] * 2, share)


class SimulatedArena(Arena):
    """Memory with a path that is the same in every run of a seed.

    Attributes:
        layout: of blocks, which are whole once they can be read; None checks nothing.
    """

    def __init__(self, num_bytes: int, path: str) -> None:
        self.path, self.num_bytes = path, num_bytes
        self.layout: SlotLayout | None = None
        self.bytes = np.zeros(num_bytes, np.uint8)
        self.words = self.bytes.view(np.uint64)
        self._process = PROCESS.get()

    @classmethod
    def create(cls, num_bytes: int) -> SimulatedArena:
        """Return fresh memory of the process that runs."""
        arenas = _ARENAS.setdefault(asyncio.get_running_loop(), {})
        path = f"simulated/{len(arenas)}"
        arenas[path] = arena = cls(num_bytes, path)
        return arena

    @classmethod
    def open(cls, path: str, num_bytes: int) -> Arena:
        """Return the memory of a store whose process lives.

        Raises:
            OSError: it is dead.
        """
        arena = _ARENAS.get(asyncio.get_running_loop(), {}).get(path)
        if arena is None or arena.num_bytes < num_bytes or (arena._process and arena._process.dead):
            raise OSError(f"{path} is gone")
        return arena

    def write_header(self, slot: int, name: bytes, generation: int, state: SlotState) -> None:
        """Write a slot's header.

        Raises:
            NotWhole: the block can be read from now on, and is not whole.
        """
        super().write_header(slot, name, generation, state)
        if state == SlotState.READY and self.layout is not None:
            first = slot + self.layout.parts_at
            parts = self.words[first // 8 : (first + self.layout.parts_bytes) // 8]
            right = checksums(parts.reshape(self.layout.num_parts, -1), generation)
            sums = self.words[(slot + HEADER.itemsize) // CHECKSUM_BYTES :][: self.layout.num_parts]
            if not np.array_equal(sums, right):
                raise NotWhole(f"the block at {slot} can be read, and some rank has not written its part")
            tags_of(asyncio.get_running_loop()).put(name, parts.view(np.uint8))

    def populate(self, start: int, end: int) -> None:
        """Do nothing: all pages are there."""


class TaggedMemory(StoredMemory):
    """An executor's side of a store, that holds each block that it restores against the tag of its name.

    Args:
        caches: uint8 [blocks, bytes] each, the blocks of the KV cache.
        layout, kind: see `StoredMemory`.
    """

    def __init__(self, caches: Sequence[UInt8], layout: SlotLayout, kind: bytes) -> None:
        super().__init__(HostBlocks(caches), layout, kind, SimulatedArena.open)
        self._caches = caches

    def move(self, request: MoveStored) -> Bools:
        """See `StoredMemory`."""
        copied = super().move(request)
        if request.way == "restore" and copied.any():
            tags, names = tags_of(asyncio.get_running_loop()), split(request.names)
            for index in np.flatnonzero(copied).tolist():
                block = int(request.blocks[index])
                tags.hold(names[index], self.layout.regions, [cache[block] for cache in self._caches])
        return copied
