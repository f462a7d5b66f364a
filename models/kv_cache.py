"""The memory of the KV cache.

On a CPU it is private memory mapped from nothing, which the system hands out page by page as blocks are
first written: a cache of gigabytes is there at once, and costs what is used of it. `torch.zeros` would
write to all of it (3.5 s for 4 GiB on the machine where this was measured, against under a millisecond).
"""

from __future__ import annotations

import mmap
from math import prod

import torch
from torch import Tensor

from pageant.kernels.base import KVCache

__all__ = ["allocate_kv_caches"]


def allocate_kv_caches(
    num_layers: int, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> list[KVCache]:
    """Return zeroed caches, one (keys, values) per layer, each of `shape`."""
    return [(_zeros(shape, dtype, device), _zeros(shape, dtype, device)) for _ in range(num_layers)]


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    num_bytes = prod(shape) * dtype.itemsize
    if device.type != "cpu" or num_bytes == 0 or not hasattr(mmap, "MAP_ANONYMOUS"):
        return torch.zeros(shape, dtype=dtype, device=device)
    # The tensor keeps the mapping alive, and it begins at a page.
    pages = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        pages.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(pages, dtype=dtype).view(shape)
