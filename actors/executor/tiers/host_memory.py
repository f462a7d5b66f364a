"""Blocks in the host's memory: slots as large as a block in all layers together, taken as they are first used.

On a CPU a block is copied by the host itself, tensor by tensor. On a GPU its parts are gathered in the device's
memory and cross in one piece, to or from pinned memory, on a stream of their own; whoever moves them waits, not
the device. What is read from the disk comes by way of a few slots of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pageant.actors.executor.tiers.moving import Int32, Move, Way
from pageant.actors.runtime.disk_file import DiskFile
from pageant.kernels.base import KVCache
from pageant.protocol.tiers import DISK

__all__ = ["DeviceHostMemory", "HostMemory"]

CHUNK_BYTES = 64 * 2**20  # that slots are allocated by
GATHERED_MAX = 32  # blocks that wait in a GPU's memory on their way


class HostMemory:
    """Host memory for one KV cache, used from one thread at a time.

    Args:
        disk: where what is spilled goes, if anything is.
    """

    def __init__(self, caches: Sequence[KVCache], disk: DiskFile | None = None) -> None:
        # Values that are parts of keys have no columns.
        rows = [cache.flatten(1) for pair in caches for cache in pair if cache.shape[-1]]
        fits = all(row.shape[1] * row.itemsize % 8 == 0 for row in rows)
        # Of each layer's keys and values, block by block: [blocks, words].
        self._caches = [row.view(torch.int64 if fits else torch.uint8) for row in rows]
        self._widths = [cache.shape[1] for cache in self._caches]
        self._words = sum(self._widths)
        self.block_bytes = self._words * (8 if fits else 1)
        self._per_chunk = max(1, CHUNK_BYTES // max(1, self.block_bytes))
        self._chunks: dict[int, Tensor] = {}
        self._disk = disk
        self._read: Tensor | None = None  # [blocks, words], what comes from there

    def slot(self, number: int) -> Tensor:
        """Return what a slot holds, [words] of the dtype of the caches' words, to be read and written."""
        index, place = divmod(number, self._per_chunk)
        if index not in self._chunks:
            self._chunks[index] = self._allocate(self._per_chunk)
        return self._chunks[index][place]

    def _allocate(self, num_slots: int) -> Tensor:
        return torch.empty(num_slots, self._words, dtype=self._caches[0].dtype)

    def move(self, move: Move) -> None:
        """Makes one move; returns when it has been made."""
        for sources, destinations in _parts(move.sources, move.destinations):
            if move.way is Way.SAVE:
                self._save(sources, [self.slot(slot) for slot in destinations.tolist()])
            elif move.way is Way.RESTORE:
                self._restore([self.slot(slot) for slot in sources.tolist()], destinations)
            elif move.way is Way.READ:
                self._restore(self._read_slots(sources), destinations)
            else:
                self._write_slots(sources, destinations)

    def _save(self, blocks: Int32, slots: list[Tensor]) -> None:
        caches = [cache.numpy() for cache in self._caches]
        for block, slot in zip(blocks.tolist(), slots, strict=True):
            held, end = slot.numpy(), 0
            for cache, width in zip(caches, self._widths, strict=True):
                held[end : end + width] = cache[block]
                end += width

    def _restore(self, slots: list[Tensor], blocks: Int32) -> None:
        caches = [cache.numpy() for cache in self._caches]
        for slot, block in zip(slots, blocks.tolist(), strict=True):
            held, end = slot.numpy(), 0
            for cache, width in zip(caches, self._widths, strict=True):
                cache[block] = held[end : end + width]
                end += width

    def _read_slots(self, slots: Int32) -> list[Tensor]:
        assert self._disk is not None, "nothing was ever written to the disk"
        if self._read is None:
            self._read = self._allocate(GATHERED_MAX)
        rows = list(self._read[: len(slots)])
        for slot, row in zip(slots.tolist(), rows, strict=True):
            self._disk.read((slot - DISK) * self.block_bytes, _bytes(row))
        return rows

    def _write_slots(self, slots: Int32, to: Int32) -> None:
        assert self._disk is not None, "there is no disk_path"
        for slot, place in zip(slots.tolist(), to.tolist(), strict=True):
            self._disk.write((place - DISK) * self.block_bytes, _bytes(self.slot(slot)))


class DeviceHostMemory(HostMemory):
    """Host memory for the KV cache of a GPU.

    Nothing that is moved is in use by a step that the device has been given: the streams need not wait for each other.
    """

    def __init__(self, caches: Sequence[KVCache], disk: DiskFile | None = None) -> None:
        super().__init__(caches, disk)
        self._device = self._caches[0].device
        self._stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]

    def _allocate(self, num_slots: int) -> Tensor:
        return torch.empty(num_slots, self._words, dtype=self._caches[0].dtype, pin_memory=True)

    @torch.inference_mode()
    def move(self, move: Move) -> None:
        """See `HostMemory.move`."""
        with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
            super().move(move)

    def _save(self, blocks: Int32, slots: list[Tensor]) -> None:
        index = torch.from_numpy(blocks).to(self._device, torch.int64)
        held = torch.cat([cache.index_select(0, index) for cache in self._caches], dim=1)
        for row, slot in zip(held, slots, strict=True):
            slot.copy_(row, non_blocking=True)
        self._stream.synchronize()

    def _restore(self, slots: list[Tensor], blocks: Int32) -> None:
        index = torch.from_numpy(blocks).to(self._device, torch.int64)
        held = torch.empty(len(blocks), self._words, dtype=self._caches[0].dtype, device=self._device)
        for row, slot in zip(held, slots, strict=True):
            row.copy_(slot, non_blocking=True)
        for cache, part in zip(self._caches, torch.split(held, self._widths, dim=1), strict=True):
            cache.index_copy_(0, index, part)
        self._stream.synchronize()


def _bytes(row: Tensor) -> npt.NDArray[np.uint8]:
    return row.numpy().view(np.uint8)


def _parts(sources: Int32, destinations: Int32) -> Iterator[tuple[Int32, Int32]]:
    for start in range(0, len(sources), GATHERED_MAX):
        yield sources[start : start + GATHERED_MAX].copy(), destinations[start : start + GATHERED_MAX]
