"""The memory of the KV cache."""

from __future__ import annotations

import torch

from pageant.kernels import memory
from pageant.kernels.base import KVCache

__all__ = ["allocate_kv_caches"]


def allocate_kv_caches(
    num_layers: int, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> list[KVCache]:
    """Return zeroed caches, one (keys, values) per layer, each of `shape`."""
    return [
        (memory.zeros(shape, dtype, device), memory.zeros(shape, dtype, device)) for _ in range(num_layers)
    ]
