"""The memory of the KV cache."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import torch

from pageant.kernels import memory
from pageant.kernels.base import KVCache
from pageant.kernels.quantized_kv import SCALE_BYTES, row_size
from pageant.models.spec import AttentionSpec
from pageant.protocol.errors import ConfigurationError

__all__ = ["KVLayout"]

_FORMATS = {torch.int8: "int8", torch.float8_e4m3fn: "fp8"}


@dataclass(frozen=True)
class KVLayout:
    """The size of the KV cache of some layers that are alike: one tensor of keys and one of values for each."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype
    """The dtype of the cache: see `pageant.kernels.quantized_kv.kv_dtype`."""
    has_values: bool = True
    """Whether values are cached. Where they are parts of the keys, the tensor of values has no columns."""

    @classmethod
    def of(cls, attention: AttentionSpec, num_layers: int, dtype: torch.dtype) -> KVLayout:
        """Return the layout of layers that attend so."""
        is_latent = attention.latent is not None
        return cls(num_layers, attention.num_kv_heads, attention.head_dim, dtype, not is_latent)

    def shape(self, num_blocks: int, block_size: int) -> tuple[int, int, int, int]:
        """Return the shape of one layer's keys, and of its values where there are any."""
        return num_blocks, self.num_kv_heads, block_size, row_size(self.head_dim, self.dtype)

    def shapes(self, num_blocks: int, block_size: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the shapes of one layer's keys and of its values."""
        keys = self.shape(num_blocks, block_size)
        return keys, keys if self.has_values else (*keys[:3], 0)

    def bytes_per_block(self, block_size: int) -> int:
        """Return the bytes of a block in all layers, keys, values and scales."""
        numbers = sum(prod(shape) for shape in self.shapes(1, block_size))
        return self.num_layers * numbers * self.dtype.itemsize

    def allocate(self, num_blocks: int, block_size: int, device: torch.device) -> list[KVCache]:
        """Return zeroed caches, one (keys, values) per layer.

        Raises ConfigurationError where scales would not be aligned in a block, and for latents in 8 bits.
        """
        shape = self.shape(num_blocks, block_size)
        if shape[3] != self.head_dim and not self.has_values:
            raise ConfigurationError(
                f"kv_cache_dtype is {_FORMATS[self.dtype]}, and the model caches latents of keys and values, which are "
                "not kept in 8 bits; expected kv_cache_dtype auto"
            )
        if shape[3] != self.head_dim and block_size * self.head_dim % SCALE_BYTES:
            raise ConfigurationError(
                f"kv_cache_dtype is in 8 bits, block_size is {block_size}, and heads have {self.head_dim} numbers; "
                f"expected a block_size whose product with them is a multiple of {SCALE_BYTES}"
            )
        keys, values = self.shapes(num_blocks, block_size)
        return [
            (memory.zeros(keys, self.dtype, device), memory.zeros(values, self.dtype, device))
            for _ in range(self.num_layers)
        ]
