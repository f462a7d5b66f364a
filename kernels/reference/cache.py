"""Writes into the paged KV cache."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import torch
from torch import Tensor

from pageant.kernels.base import KVCache
from pageant.kernels.quantized_kv import cached_parts, is_quantized, quantize_heads

__all__ = ["move_kv", "move_slots", "write_kv"]


def write_kv(key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slots: Tensor) -> None:
    """See `Kernels.write_kv`."""
    block_size = key_cache.shape[2]
    blocks = torch.div(slots, block_size, rounding_mode="floor")
    offsets = slots - blocks * block_size
    for heads, cache in ((key, key_cache), (value, value_cache)):
        written: tuple[Tensor, ...] = (heads,)
        if is_quantized(cache):
            codes, scales = quantize_heads(heads, cache.dtype)
            written = (codes.view(torch.uint8), scales)
        for part, new in zip(cached_parts(cache), written, strict=True):
            part[blocks, :, offsets] = new


def move_kv(caches: Sequence[KVCache], sources: Tensor, destinations: Tensor) -> None:
    """See `Kernels.move_kv`."""
    for cache in chain.from_iterable(caches):
        whole = cache.view(torch.uint8) if is_quantized(cache) else cache
        whole[destinations] = whole[sources]


def move_slots(caches: Sequence[KVCache], sources: Tensor, destinations: Tensor) -> None:
    """See `Kernels.move_slots`."""
    for part in chain.from_iterable(map(cached_parts, chain.from_iterable(caches))):
        block_size = part.shape[2]
        moved = part[sources // block_size, :, sources % block_size]
        part[destinations // block_size, :, destinations % block_size] = moved
