"""An executor's side of a store: copies of blocks between its KV cache and the store's memory.

Each rank copies its own parts of a slot (see `pageant.protocol.arena`): a cache holds some heads of one layer's keys
or values, and these lie side by side in the slot. Knows no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from pageant.protocol.arena import (
    CHECKSUM_BYTES,
    HEADER,
    Arena,
    SlotState,
    aligned,
    checksums,
    split,
    sum_of_parts,
    sum_of_sums,
)
from pageant.protocol.storing import MoveStored

__all__ = ["CachedBlocks", "HostBlocks", "Region", "SlotLayout", "StoredMemory"]

Bools = npt.NDArray[np.bool_]
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
    """Blocks of a rank's KV cache."""

    def read(self, blocks: Sequence[int]) -> Iterator[Sequence[UInt8]]:
        """Yield the bytes of each block, uint8 [bytes] for each cache, valid until the next."""

    def write(self, block: int, parts: Sequence[UInt8]) -> None:
        """Set the bytes of a block, uint8 [bytes] for each cache."""

    def flush(self) -> None:
        """Return when everything written is there."""


class HostBlocks:
    """Blocks of a KV cache in the host's memory. caches: uint8 [blocks, bytes] each."""

    def __init__(self, caches: Sequence[UInt8]) -> None:
        self._caches = caches

    def read(self, blocks: Sequence[int]) -> Iterator[Sequence[UInt8]]:
        """See `CachedBlocks`."""
        for block in blocks:
            yield [cache[block] for cache in self._caches]

    def write(self, block: int, parts: Sequence[UInt8]) -> None:
        """See `CachedBlocks`."""
        for cache, part in zip(self._caches, parts, strict=True):
            cache[block] = part

    def flush(self) -> None:
        """See `CachedBlocks`."""


class StoredMemory:
    """Copies between a rank's blocks and a store's memory. Used from one thread at a time.

    Args:
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
    ) -> None:
        self.layout, self.kind = layout, kind
        self._open_arena = open_arena
        self._blocks = blocks
        self._arena: Arena | None = None
        self._arena_of = (0, "")
        # Regions that are alike in the size of their parts follow one another: their checksums are taken together.
        self._runs = list(_runs(layout.regions))
        ends = [0, *(region.start + region.num_bytes for region in layout.regions)]
        self._is_whole = ends[-1] == layout.parts_bytes and ends[:-1] == [one.start for one in layout.regions]

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
        for (_, name, slot, generation), parts in zip(moves, found, strict=True):
            if not arena.holds(slot, name, generation, SlotState.WRITING):
                yield False
                continue
            inside = self._parts(arena, slot)
            if self._is_whole:
                np.concatenate(parts, out=inside)
            else:
                for region, part in zip(self.layout.regions, parts, strict=True):
                    inside[region.start : region.start + region.num_bytes] = part
            sums = self._checksums(arena, slot)
            for run in self._runs:
                words = _words(inside, run).reshape(run.num_parts, -1)
                sums[run.first_part : run.first_part + run.num_parts] = checksums(words, generation)
            yield arena.holds(slot, name, generation, SlotState.WRITING)

    def _restore(self, arena: Arena, moves: Sequence[tuple[int, bytes, int, int]]) -> Iterator[bool]:
        for block, name, slot, generation in moves:
            if not arena.holds(slot, name, generation, SlotState.READY):
                yield False
                continue
            inside, sums = self._parts(arena, slot), self._checksums(arena, slot)
            regions = self.layout.regions
            self._blocks.write(block, [inside[one.start : one.start + one.num_bytes] for one in regions])
            # What was wrong when it was copied is wrong still: the other way round, it might be spoilt in between.
            whole = all(
                sum_of_sums(sums[run.first_part : run.first_part + run.num_parts])
                == sum_of_parts(_words(inside, run), run.num_parts, generation)
                for run in self._runs
            )
            yield whole and arena.holds(slot, name, generation, SlotState.READY)
        self._blocks.flush()

    def _parts(self, arena: Arena, slot: int) -> UInt8:
        first = slot + self.layout.parts_at
        return arena.bytes[first : first + self.layout.parts_bytes]

    def _checksums(self, arena: Arena, slot: int) -> npt.NDArray[np.uint64]:
        first = (slot + HEADER.itemsize) // CHECKSUM_BYTES
        return arena.words[first : first + self.layout.num_parts]


def _runs(regions: Sequence[Region]) -> Iterator[Region]:
    """Yield regions, joined with those that follow them in the slot and have parts of the same size."""
    run: Region | None = None
    for region in regions:
        if (
            run is not None
            and region.part_bytes == run.part_bytes
            and (region.first_part, region.start)
            == (run.first_part + run.num_parts, run.start + run.num_bytes)
        ):
            run = Region(run.first_part, run.num_parts + region.num_parts, run.start, run.part_bytes)
            continue
        if run is not None:
            yield run
        run = region
    if run is not None:
        yield run


def _words(inside: UInt8, run: Region) -> npt.NDArray[Any]:
    """Return a run's parts, uint64 [words], or uint8 [bytes] where parts are no whole words."""
    data = inside[run.start : run.start + run.num_bytes]
    return data.view(np.uint64) if _has_words(run) else data


def _has_words(region: Region) -> bool:
    return region.part_bytes % 8 == 0 and region.start % 8 == 0
