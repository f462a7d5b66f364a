"""The side of a store that a torch runner has: how its KV cache lies in a slot, and what it depends on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import blake2b
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pageant.actors.executor.runners.config import RunnerConfig
from pageant.actors.executor.tiers.stored_memory import (
    CachedBlocks,
    HostBlocks,
    LayoutShare,
    SlotLayout,
    StoredMemory,
)
from pageant.actors.runtime.version import VERSION
from pageant.kernels.base import Kernels, KVCache
from pageant.kernels.host_copies import copy_parts
from pageant.models.checkpoint import Checkpoint
from pageant.models.sharding import Shard
from pageant.protocol.block_names import NAME_BYTES

__all__ = ["DeviceBlocks", "digest_of", "stored_memory"]

SAMPLES = 512
"""Places of each weight file that are compared."""
SAMPLE_BYTES = 256
GATHERED = 32
"""Blocks that are on their way between a GPU and the host at once."""


def stored_memory(
    config: RunnerConfig,
    caches: Sequence[KVCache],
    kernels: Kernels,
    *,
    dtype: str,
    windows: tuple[int | None, ...],
) -> StoredMemory | None:
    """Return a runner's side of a store; None for stages of a model whose layers are in several groups.

    Args:
        caches: all of the runner's, those of drafts included.
        kernels: their backend, which may have copies of its own in the host's memory.
        dtype: of the weights.
    """
    shard = config.shard
    if shard is not None and shard.stage.count > 1 and len(windows) > 1:
        return None
    rows = [cache.reshape(len(cache), -1).view(torch.uint8) for pair in caches for cache in pair]
    shapes = [
        (cache.shape[1], row.shape[1] // cache.shape[1])
        for cache, row in zip(_each(caches), rows, strict=True)
    ]
    layout = SlotLayout.of(shapes, None if shard is None else _share(config.model, shard))
    kind = blake2b(digest_size=NAME_BYTES)
    for part in (
        *(
            VERSION,
            str(torch.__version__),
            f"{kernels.name} {getattr(kernels, 'level', '')}",
            dtype,
            digest_of(config.model),
        ),
        *(config.quantization, config.head_quantization, config.weight_version, config.deterministic),
        *(config.kv_cache_dtype, config.block_size, windows, layout.num_parts, layout.parts_bytes),
        # Sums over the ranks are taken in so many parts: other numbers give other bits.
        *(1 if shard is None else shard.segments or shard.ranks, None if shard is None else shard.experts),
        msgspec.json.encode(config.speculation),
    ):
        kind.update(repr(part).encode() + b"\0")
    on_host = rows[0].device.type == "cpu"
    blocks: CachedBlocks = HostBlocks([row.numpy() for row in rows]) if on_host else DeviceBlocks(rows)
    copy = getattr(kernels, "copy_parts", copy_parts)
    return StoredMemory(blocks, layout, kind.digest(), copy=copy)


def _each(caches: Sequence[KVCache]) -> Iterator[Tensor]:
    return (cache for pair in caches for cache in pair)


def _share(model: Path, shard: Shard) -> LayoutShare:
    spec = Checkpoint(model).decoder_spec()
    in_stages = shard.stage.count > 1
    return LayoutShare(
        first_layer=shard.stage.layers(spec.num_layers).start if in_stages else 0,
        num_layers=spec.num_layers if in_stages else None,
        rank=shard.rank,
        num_heads=spec.attention.num_kv_heads,
        num_ranks=shard.ranks,
    )


def digest_of(model: Path) -> str:
    """Return a digest of a checkpoint: its folder, its configuration, and samples of its weights.

    Reading all weights would take seconds. Checkpoints that differ have different folders, or were written over:
    then nearly all of their samples differ.
    """
    digest = blake2b(str(model.resolve()).encode() + b"\0", digest_size=NAME_BYTES)
    if (model / "config.json").exists():
        digest.update((model / "config.json").read_bytes())
    for path in sorted(Checkpoint(model).weight_files):
        size = path.stat().st_size
        digest.update(size.to_bytes(8, "little"))
        with path.open("rb") as file:
            for place in np.linspace(0, max(0, size - SAMPLE_BYTES), SAMPLES, dtype=np.int64).tolist():
                file.seek(place)
                digest.update(file.read(SAMPLE_BYTES))
    return digest.hexdigest()


class DeviceBlocks:
    """Blocks of a KV cache on a GPU, which pass through pinned memory. caches: uint8 [blocks, bytes] each."""

    def __init__(self, caches: Sequence[Tensor]) -> None:
        self._caches = caches
        self._widths = [cache.shape[1] for cache in caches]
        self._device = caches[0].device
        self._stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        self._passing = torch.empty(GATHERED, sum(self._widths), dtype=torch.uint8, pin_memory=True)
        # Where each cache's bytes are in a row that passes.
        self._offsets = np.cumsum([0, *self._widths[:-1]], dtype=np.int64)
        self._written: list[int] = []

    @torch.inference_mode()
    def read(self, blocks: Sequence[int]) -> Iterator[npt.NDArray[np.int64]]:
        """See `CachedBlocks`."""
        for start in range(0, len(blocks), GATHERED):
            some = blocks[start : start + GATHERED]
            with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
                index = torch.tensor(some, device=self._device)
                rows = torch.cat([cache.index_select(0, index) for cache in self._caches], dim=1)
                self._passing[: len(some)].copy_(rows, non_blocking=True)
                self._stream.synchronize()
            yield from map(self._row, range(len(some)))

    def place(self, block: int) -> npt.NDArray[np.int64]:
        """See `CachedBlocks`."""
        if len(self._written) == GATHERED:
            self.flush()
        self._written.append(block)
        return self._row(len(self._written) - 1)

    def _row(self, number: int) -> npt.NDArray[np.int64]:
        return self._passing[number].data_ptr() + self._offsets

    @torch.inference_mode()
    def flush(self) -> None:
        """See `CachedBlocks`."""
        written, self._written = self._written, []
        if not written:
            return
        with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
            index = torch.tensor(written, device=self._device)
            rows = self._passing[: len(written)].to(self._device, non_blocking=True)
            for cache, part in zip(self._caches, torch.split(rows, self._widths, dim=1), strict=True):
                cache.index_copy_(0, index, part)
            self._stream.synchronize()
