"""The memory of the KV cache."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import torch

from pageant.kernels import memory
from pageant.kernels.base import KVCache
from pageant.kernels.quantized_kv import SCALE_BYTES, row_size
from pageant.protocol.errors import ConfigurationError

__all__ = ["KVLayout"]


@dataclass(frozen=True)
class KVLayout:
    """The size of the KV cache of some layers that are alike: one tensor of keys and one of values for each."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype
    """The dtype of the cache: see `pageant.kernels.quantized_kv.kv_dtype`."""

    def shape(self, num_blocks: int, block_size: int) -> tuple[int, int, int, int]:
        """Return the shape of one layer's keys, and of its values."""
        return num_blocks, self.num_kv_heads, block_size, row_size(self.head_dim, self.dtype)

    def bytes_per_block(self, block_size: int) -> int:
        """Return the bytes of a block in all layers, keys, values and scales."""
        return 2 * self.num_layers * prod(self.shape(1, block_size)) * self.dtype.itemsize

    def allocate(self, num_blocks: int, block_size: int, device: torch.device) -> list[KVCache]:
        """Return zeroed caches, one (keys, values) per layer.

        Raises ConfigurationError where scales would not be aligned in a block.
        """
        shape = self.shape(num_blocks, block_size)
        if shape[3] != self.head_dim and block_size * self.head_dim % SCALE_BYTES:
            raise ConfigurationError(
                f"kv_cache_dtype is in 8 bits, block_size is {block_size}, and heads have {self.head_dim} numbers; "
                f"expected a block_size whose product with them is a multiple of {SCALE_BYTES}"
            )
        return [
            (memory.zeros(shape, self.dtype, device), memory.zeros(shape, self.dtype, device))
            for _ in range(self.num_layers)
        ]
