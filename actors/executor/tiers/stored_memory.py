"""An executor's side of a store: copies of blocks between its KV cache and the store's memory.

Each rank copies its own parts of a slot (see `pageant.protocol.arena`): a cache holds some heads of one layer's keys
or values, and these lie side by side in the slot. Knows no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from pageant.kernels.host_copies import CopyParts, PartCopies, copy_parts
from pageant.protocol.arena import (
    CHECKSUM_BYTES,
    HEADER,
    Arena,
    SlotState,
    aligned,
    split,
    with_generation,
)
from pageant.protocol.storing import MoveStored

__all__ = ["CachedBlocks", "HostBlocks", "Region", "SlotLayout", "StoredMemory"]

Bools = npt.NDArray[np.bool_]
Int64 = npt.NDArray[np.int64]
UInt64 = npt.NDArray[np.uint64]
UInt8 = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Region:
    """A rank's part of a slot for one of its caches: some heads, whose parts lie side by side."""

    first_part: int
    """The number of its first part, among those of the slot."""
    num_parts: int
    start: int
    """Its first byte, counted from the slot's first part."""
    part_bytes: int

    @property
    def num_bytes(self) -> int:
        """Return the bytes of the region."""
        return self.num_parts * self.part_bytes


@dataclass(frozen=True, slots=True)
class SlotLayout:
    """A slot, and a rank's regions of it, one for each of its caches."""

    num_parts: int
    parts_bytes: int
    """Bytes of all parts of all ranks."""
    regions: tuple[Region, ...]

    @classmethod
    def of(cls, shapes: Sequence[tuple[int, int]], part: LayoutShare | None = None) -> SlotLayout:
        """Return the layout for caches of such shapes.

        Args:
            shapes: heads, and bytes of each head in a block, of each cache. Keys and values of a layer follow one
                another.
            part: the rank's share of layers and heads, where it is one of several. Layers are all alike then.
        """
        share = part or LayoutShare()
        if part is not None:
            assert len(set(shapes[::2])) == len(set(shapes[1::2])) == 1, "a group's layers are alike"
        regions: list[Region] = []
        number = start = 0
        layers = list(zip(shapes[::2], shapes[1::2], strict=True))
        before = share.first_layer * sum(share.heads_of(heads) * size for heads, size in shapes[:2])
        number, start = share.first_layer * sum(share.heads_of(heads) for heads, _ in shapes[:2]), before
        for layer in layers:
            for heads, size in layer:
                head = share.first_head(heads)
                regions.append(Region(number + head, heads, start + head * size, size))
                number += share.heads_of(heads)
                start += share.heads_of(heads) * size
        after = 0 if share.num_layers is None else share.num_layers - share.first_layer - len(layers)
        if after:
            number += after * sum(share.heads_of(heads) for heads, _ in shapes[:2])
            start += after * sum(share.heads_of(heads) * size for heads, size in shapes[:2])
        return cls(number, start, tuple(regions))

    @property
    def parts_at(self) -> int:
        """Return the first byte of the parts, counted from the slot's header."""
        return aligned(HEADER.itemsize + self.num_parts * CHECKSUM_BYTES)

    @property
    def has_words(self) -> bool:
        """Tell whether all checksums are of 64-bit words."""
        return all(map(_has_words, self.regions))

    @property
    def slot_bytes(self) -> int:
        """Return the bytes of a slot."""
        return aligned(self.parts_at + self.parts_bytes)


@dataclass(frozen=True, slots=True)
class LayoutShare:
    """A rank's share of a group's layers and heads."""

    first_layer: int = 0
    num_layers: int | None = None
    """Layers of all stages; None where there is one stage."""
    rank: int = 0
    """Its number among the ranks that share heads."""
    num_heads: int | None = None
    """Heads of all ranks; None where there is one rank."""
    num_ranks: int = 1

    def heads_of(self, heads: int) -> int:
        """Return the heads that all ranks have, where this one has so many."""
        return heads if self.num_heads is None else self.num_heads

    def first_head(self, heads: int) -> int:
        """Return the first of this rank's heads. Ranks beyond the number of heads share one."""
        if self.num_heads is None:
            return 0
        return (
            self.rank * heads
            if self.num_heads >= self.num_ranks
            else self.rank * self.num_heads // self.num_ranks
        )


class CachedBlocks(Protocol):
    """Blocks of a rank's KV cache, as memory of the host that is read and written by its addresses."""

    def read(self, blocks: Sequence[int]) -> Iterator[Int64]:
        """Yield where the bytes of each block are, int64 addresses [caches], valid until the next."""

    def place(self, block: int) -> Int64:
        """Return where the bytes of a block are to be written, int64 addresses [caches], valid until the next."""

    def flush(self) -> None:
        """Return when everything written is there."""


class HostBlocks:
    """Blocks of a KV cache in the host's memory. caches: uint8 [blocks, bytes] each, a row's bytes side by side."""

    def __init__(self, caches: Sequence[UInt8]) -> None:
        assert all(cache.dtype == np.uint8 and cache.strides[1] == 1 for cache in caches), "rows of bytes"
        # Of each cache. The memory at these addresses lives as long as `_caches`.
        self._caches = caches
        self._starts: Int64 = np.array([cache.ctypes.data for cache in caches], np.int64)
        self._strides: Int64 = np.array([cache.strides[0] for cache in caches], np.int64)
        self._num_blocks = min(map(len, caches))

    def read(self, blocks: Sequence[int]) -> Iterator[Int64]:
        """See `CachedBlocks`."""
        return map(self._at, blocks)

    def place(self, block: int) -> Int64:
        """See `CachedBlocks`."""
        return self._at(block)

    def _at(self, block: int) -> Int64:
        assert 0 <= block < self._num_blocks, "it is a block of the cache"
        return self._starts + block * self._strides

    def flush(self) -> None:
        """See `CachedBlocks`."""


class StoredMemory:
    """Copies between a rank's blocks and a store's memory. Used from one thread at a time.

    Args:
        copy: copies and sums up, as the backend's kernels do.
        open_arena: maps a store's memory by its path and bytes; raises OSError where it is gone.

    Attributes:
        kind: see `StoredLayout`.
    """

    def __init__(
        self,
        blocks: CachedBlocks,
        layout: SlotLayout,
        kind: bytes = b"",
        open_arena: Callable[[str, int], Arena] = Arena.open,
        copy: CopyParts = copy_parts,
    ) -> None:
        self.layout, self.kind = layout, kind
        self._open_arena, self._copy = open_arena, copy
        self._blocks = blocks
        self._arena: Arena | None = None
        self._arena_of = (0, "")
        regions = layout.regions
        # Of each region: where it begins in a slot, and how its parts are copied.
        self._starts: Int64 = np.array([layout.parts_at + one.start for one in regions], np.int64)
        self._counts: Int64 = np.array([one.num_parts for one in regions], np.int64)
        self._part_bytes: Int64 = np.array([one.part_bytes for one in regions], np.int64)
        self._in_words: Int64 = np.array([_has_words(one) for one in regions], np.int64)
        # Numbers of the rank's parts among those of the slot, in the order in which they are copied, and their sums.
        self._numbers = np.concatenate([np.arange(one.num_parts) + one.first_part for one in regions])
        self._sums = np.empty(len(self._numbers), np.uint64)

    def move(self, request: MoveStored) -> Bools:
        """Make copies. Return which blocks were copied whole, bool [N]."""
        none = np.zeros(len(request.blocks), np.bool_)
        try:
            arena = self._open(request)
        except OSError:
            return none
        names, slots = split(request.names), request.slots.tolist()
        columns = zip(request.blocks.tolist(), names, slots, request.generations.tolist(), strict=True)
        moves = [one for one in columns if self._lies_within(arena, one[2])]
        if len(moves) < len(slots):
            return none
        copied = self._save(arena, moves) if request.way == "save" else self._restore(arena, moves)
        return np.fromiter(copied, np.bool_, len(moves))

    def _open(self, request: MoveStored) -> Arena:
        meant = (request.arena.epoch, request.arena.path)
        if self._arena is None or self._arena_of != meant:
            self._arena, self._arena_of = self._open_arena(request.arena.path, request.arena.num_bytes), meant
        return self._arena

    def _lies_within(self, arena: Arena, slot: int) -> bool:
        return slot % 64 == 0 and 0 <= slot <= arena.num_bytes - self.layout.slot_bytes

    def _save(self, arena: Arena, moves: Sequence[tuple[int, bytes, int, int]]) -> Iterator[bool]:
        found = self._blocks.read([block for block, *_ in moves])
        for (_, name, slot, generation), sources in zip(moves, found, strict=True):
            if not arena.holds(slot, name, generation, SlotState.WRITING):
                yield False
                continue
            sums = self._copied(sources, arena.address + slot + self._starts)
            self._checksums(arena, slot)[self._numbers] = with_generation(sums, generation)
            yield arena.holds(slot, name, generation, SlotState.WRITING)

    def _restore(self, arena: Arena, moves: Sequence[tuple[int, bytes, int, int]]) -> Iterator[bool]:
        for block, name, slot, generation in moves:
            if not arena.holds(slot, name, generation, SlotState.READY):
                yield False
                continue
            # Sums are of what was copied, whatever is in the slot by now.
            sums = self._copied(arena.address + slot + self._starts, self._blocks.place(block))
            yield self._fits(arena, slot, with_generation(sums, generation)) and arena.holds(
                slot, name, generation, SlotState.READY
            )
        self._blocks.flush()

    def _copied(self, sources: Int64, destinations: Int64) -> UInt64:
        """Copy a block, and return the sums of its parts, uint64 [parts], valid until the next."""
        copies = PartCopies(sources, destinations, self._counts, self._part_bytes, self._in_words)
        self._copy(copies, self._sums)
        return self._sums

    def _fits(self, arena: Arena, slot: int, sums: UInt64) -> bool:
        """Tell whether the sums of a slot's parts, uint64 [parts], are those that were written with it."""
        return np.array_equal(sums, self._checksums(arena, slot)[self._numbers])

    def _checksums(self, arena: Arena, slot: int) -> npt.NDArray[np.uint64]:
        first = (slot + HEADER.itemsize) // CHECKSUM_BYTES
        return arena.words[first : first + self.layout.num_parts]


def _has_words(region: Region) -> bool:
    return region.part_bytes % 8 == 0 and region.start % 8 == 0
