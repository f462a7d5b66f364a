"""Blocks in the host's memory: slots as large as a block in all layers together, taken as they are first used.

On a CPU a block is copied by the host itself, tensor by tensor. On a GPU its parts are gathered in the device's
memory and cross in one piece, to or from pinned memory, on a stream of their own; whoever moves them waits, not
the device.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from pageant.actors.executor.moving import Int32, Move
from pageant.kernels.base import KVCache

__all__ = ["DeviceHostMemory", "HostMemory"]

CHUNK_BYTES = 64 * 2**20  # that slots are allocated by
GATHERED_MAX = 32  # blocks that wait in a GPU's memory on their way


class HostMemory:
    """For one KV cache, used from one thread at a time."""

    def __init__(self, caches: Sequence[KVCache]) -> None:
        rows = [cache.reshape(len(cache), -1) for pair in caches for cache in pair]
        fits = all(row.shape[1] * row.itemsize % 8 == 0 for row in rows)
        # Of each layer's keys and values, block by block: [blocks, words].
        self._caches = [row.view(torch.int64 if fits else torch.uint8) for row in rows]
        self._widths = [cache.shape[1] for cache in self._caches]
        self._words = sum(self._widths)
        self.block_bytes = self._words * (8 if fits else 1)
        self._per_chunk = max(1, CHUNK_BYTES // max(1, self.block_bytes))
        self._chunks: dict[int, Tensor] = {}

    def slot(self, number: int) -> Tensor:
        """What a slot holds, [words], to be read and written."""
        index, place = divmod(number, self._per_chunk)
        if index not in self._chunks:
            self._chunks[index] = self._allocate(self._per_chunk)
        return self._chunks[index][place]

    def _allocate(self, num_slots: int) -> Tensor:
        return torch.empty(num_slots, self._words, dtype=self._caches[0].dtype)

    def move(self, move: Move) -> None:
        """Makes one move; returns when it has been made."""
        caches = [cache.numpy() for cache in self._caches]
        for block, slot in zip(move.save_blocks.tolist(), move.save_slots.tolist(), strict=True):
            held, end = self.slot(slot).numpy(), 0
            for cache, width in zip(caches, self._widths, strict=True):
                held[end : end + width] = cache[block]
                end += width
        for slot, block in zip(move.restore_slots.tolist(), move.restore_blocks.tolist(), strict=True):
            held, end = self.slot(slot).numpy(), 0
            for cache, width in zip(caches, self._widths, strict=True):
                cache[block] = held[end : end + width]
                end += width


class DeviceHostMemory(HostMemory):
    """For the KV cache of a GPU."""

    def __init__(self, caches: Sequence[KVCache]) -> None:
        super().__init__(caches)
        self._device = self._caches[0].device
        self._stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]

    def _allocate(self, num_slots: int) -> Tensor:
        return torch.empty(num_slots, self._words, dtype=self._caches[0].dtype, pin_memory=True)

    @torch.inference_mode()
    def move(self, move: Move) -> None:
        """See `HostMemory.move`. Nothing that is moved is in use by a step that the device has been given, so
        that the streams need not wait for each other."""
        with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
            for blocks, slots in _parts(move.save_blocks, move.save_slots):
                index = torch.from_numpy(blocks).to(self._device, torch.int64)
                held = torch.cat([cache.index_select(0, index) for cache in self._caches], dim=1)
                for row, slot in zip(held, slots.tolist(), strict=True):
                    self.slot(slot).copy_(row, non_blocking=True)
            for blocks, slots in _parts(move.restore_blocks, move.restore_slots):
                index = torch.from_numpy(blocks).to(self._device, torch.int64)
                held = torch.empty(len(blocks), self._words, dtype=self._caches[0].dtype, device=self._device)
                for row, slot in zip(held, slots.tolist(), strict=True):
                    row.copy_(self.slot(slot), non_blocking=True)
                for cache, part in zip(self._caches, torch.split(held, self._widths, dim=1), strict=True):
                    cache.index_copy_(0, index, part)
            self._stream.synchronize()


def _parts(blocks: Int32, slots: Int32) -> Iterator[tuple[Int32, Int32]]:
    for start in range(0, len(blocks), GATHERED_MAX):
        yield blocks[start : start + GATHERED_MAX].copy(), slots[start : start + GATHERED_MAX]
