"""A KV memory in which every slot says what it holds, and what is below it: the oracle of what is read.

What stands for keys and values is up to the user. Nothing was ever written to a slot that holds None.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from pageant.protocol.tiers import BlockMoves

Blocks = list[list[Any]]
Pairs = Iterator[tuple[int, int]]


class ShadowMemory:
    """`num_blocks` blocks of `block_size` slots, and as many slots as blocks, below."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.blocks: Blocks = [[None] * block_size for _ in range(num_blocks)]
        self._block_size = block_size
        self._below: dict[int, list[Any]] = {}

    def snapshot(self) -> ShadowMemory:
        """The same, whatever happens to this one."""
        copy = ShadowMemory(0, self._block_size)
        copy.blocks = [list(block) for block in self.blocks]
        copy._below = {slot: list(held) for slot, held in self._below.items()}
        return copy

    def copy(self, sources: Iterable[int], destinations: Iterable[int]) -> None:
        """Copies blocks: all are read, then all are written."""
        read = [list(self.blocks[source]) for source in sources]
        for block, held in zip(destinations, read, strict=True):
            self.blocks[block] = held

    def move_before(self, moves: BlockMoves) -> None:
        """Do the moves before a step's copies: urgent saves, and then what is needed."""
        self._save(_pairs(moves.save_blocks[: moves.num_urgent], moves.save_slots[: moves.num_urgent]))
        needed = moves.num_needed
        self._restore(_pairs(moves.restore_slots[:needed], moves.restore_blocks[:needed]))

    def move_beside(self, moves: BlockMoves) -> None:
        """Do the moves before the next step computes: what is spilled, what is saved, and what is restored."""
        for slot, to in _pairs(moves.spill_slots, moves.spill_to):
            self._below[to] = self._held_below(slot)
        self._save(_pairs(moves.save_blocks[moves.num_urgent :], moves.save_slots[moves.num_urgent :]))
        needed = moves.num_needed
        self._restore(_pairs(moves.restore_slots[needed:], moves.restore_blocks[needed:]))

    def _save(self, pairs: Pairs) -> None:
        for block, slot in pairs:
            self._below[slot] = list(self.blocks[block])

    def _restore(self, pairs: Pairs) -> None:
        for slot, block in pairs:
            self.blocks[block] = self._held_below(slot)

    def _held_below(self, slot: int) -> list[Any]:
        return list(self._below.get(slot, [None] * self._block_size))


def first_read(window: int | None, start: int) -> int:
    """The first token that is attended over when a sequence is computed from token `start` on."""
    return 0 if window is None else max(0, start + 1 - window)


def _pairs(sources: npt.NDArray[np.int32], destinations: npt.NDArray[np.int32]) -> Pairs:
    return zip(sources.tolist(), destinations.tolist(), strict=True)
