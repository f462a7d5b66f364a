"""Writes into the paged KV cache."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import torch
from torch import Tensor

from pageant.kernels.base import KVCache

__all__ = ["move_kv", "move_slots", "write_kv"]


def write_kv(key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slots: Tensor) -> None:
    """See `Kernels.write_kv`."""
    block_size = key_cache.shape[2]
    blocks = torch.div(slots, block_size, rounding_mode="floor")
    offsets = slots - blocks * block_size
    key_cache[blocks, :, offsets] = key
    value_cache[blocks, :, offsets] = value


def move_kv(caches: Sequence[KVCache], sources: Tensor, destinations: Tensor) -> None:
    """See `Kernels.move_kv`."""
    for key_cache, value_cache in caches:
        key_cache[destinations] = key_cache[sources]
        value_cache[destinations] = value_cache[sources]


def move_slots(caches: Sequence[KVCache], sources: Tensor, destinations: Tensor) -> None:
    """See `Kernels.move_slots`."""
    for cache in chain.from_iterable(caches):
        block_size = cache.shape[2]
        moved = cache[sources // block_size, :, sources % block_size]
        cache[destinations // block_size, :, destinations % block_size] = moved
