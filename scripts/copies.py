"""Copies between blocks of a KV cache and a store's memory, made here without an engine, to time them."""

from __future__ import annotations

from typing import Literal

import numpy as np

from pageant.actors.executor.tiers.stored_memory import HostBlocks, SlotLayout, StoredMemory
from pageant.kernels.cpu.build import BuildError
from pageant.kernels.cpu.copying import copier
from pageant.kernels.cpu.library import load_library
from pageant.kernels.host_copies import CopyParts, copy_parts
from pageant.protocol.arena import Arena, SlotState, joined
from pageant.protocol.arrays import int32, int64
from pageant.protocol.storing import ArenaRef, MoveStored

Way = Literal["save", "restore"]


class Copies:
    """Blocks of a KV cache, and a store's memory with a slot for each."""

    def __init__(self, blocks: int, layers: int, heads: int, head_bytes: int) -> None:
        width = heads * head_bytes
        chance = np.random.default_rng(0)
        self.caches = [chance.integers(0, 256, (blocks, width), np.uint8) for _ in range(2 * layers)]
        layout = SlotLayout.of([(heads, head_bytes)] * 2 * layers)
        self.num_bytes = blocks * layout.parts_bytes
        self._memory = StoredMemory(HostBlocks(self.caches), layout, copy=_copier())
        self._arena = Arena.create(blocks * layout.slot_bytes)
        self._arena.populate(0, self._arena.num_bytes)
        names = [number.to_bytes(16, "little") for number in range(blocks)]
        slots = [number * layout.slot_bytes for number in range(blocks)]
        self._slots = list(zip(names, slots, strict=True))
        ref = ArenaRef(path=self._arena.path, num_bytes=self._arena.num_bytes, epoch=1)
        self._moves = {
            way: MoveStored(
                epoch=1,
                way=way,
                arena=ref,
                blocks=int32(range(blocks)),
                names=joined(names),
                slots=int64(slots),
                generations=int64([1] * blocks),
                scheduler=1,
                step=0,
            )
            for way in ("save", "restore")
        }
        self._bytes = np.concatenate([cache.reshape(-1) for cache in self.caches])
        self._copy = np.zeros_like(self._bytes)

    def move(self, way: Way) -> None:
        """Copy all blocks. Raises AssertionError where one was not whole."""
        state = SlotState.WRITING if way == "save" else SlotState.READY
        for name, slot in self._slots:
            self._arena.write_header(slot, name, 1, state)
        assert self._memory.move(self._moves[way]).all(), f"a block was not whole: {way}"

    def memcpy(self) -> None:
        """Copy as many bytes at once."""
        np.copyto(self._copy, self._bytes)


def _copier() -> CopyParts:
    """Return the copies of executors on this machine's CPU."""
    try:
        return copier(load_library())
    except BuildError:
        return copy_parts
