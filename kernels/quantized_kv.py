"""KV caches in 8 bits: how keys and values are quantised, and where codes and scales lie in a block.

Each key and each value, of one token and one head, has a float32 scale of its own, made when it is written. So
what is cached of a token depends on that token alone: neither on the batch nor on how its prompt was chunked.

A cache of int8 or float8_e4m3fn is [num_blocks, Hkv, block_size, D + 4]. The last two dimensions are the bytes
of one head in one block: first codes [block_size, D], then scales [block_size]. A block's scales lie inside it,
so whatever copies, saves or moves blocks takes them along.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

__all__ = [
    "SCALE_BYTES",
    "KVFormat",
    "cached_parts",
    "dequantize_blocks",
    "dequantize_heads",
    "is_quantized",
    "kv_dtype",
    "quantize_heads",
    "row_size",
]

KVFormat = Literal["auto", "int8", "fp8"]
"""Of a KV cache's numbers; `auto` is the model's own dtype."""

SCALE_BYTES = 4
_LARGEST = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}
_DTYPES = {"int8": torch.int8, "fp8": torch.float8_e4m3fn}


def kv_dtype(kv_format: KVFormat, model_dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of a KV cache's tensors."""
    return model_dtype if kv_format == "auto" else _DTYPES[kv_format]


def is_quantized(cache: Tensor) -> bool:
    """Tell whether a cache [num_blocks, Hkv, block_size, ...], of any dtype, has codes and scales."""
    return cache.dtype in _LARGEST


def row_size(head_dim: int, dtype: torch.dtype) -> int:
    """Return the size of a cache's last dimension, for a dtype of `kv_dtype`."""
    return head_dim + SCALE_BYTES if dtype in _LARGEST else head_dim


def cached_parts(cache: Tensor) -> tuple[Tensor, ...]:
    """Return views of all that a cache [..., block_size, D or D + 4] holds by token, [..., block_size, ...] each.

    They are the codes [.., D], as bytes, and the float32 scales; or the cache itself, where it is in no 8 bits.
    """
    if not is_quantized(cache):
        return (cache,)
    data, block_size = cache.view(torch.uint8).flatten(-2), cache.shape[-2]
    num_codes = data.shape[-1] - block_size * SCALE_BYTES
    codes = data[..., :num_codes].view(*data.shape[:-1], block_size, num_codes // block_size)
    return codes, data[..., num_codes:].view(torch.float32)


def quantize_heads(heads: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Quantise keys or values [..., D] of any float dtype.

    Returns codes [..., D] of `dtype` and float32 scales [...]. The largest number of a head becomes the largest
    code. A head with a number that is not finite is NaN when it is dequantised.
    """
    wide, largest = heads.float(), _LARGEST[dtype]
    # By a tensor: on a GPU torch divides by a number by multiplying with its reciprocal, which is rounded.
    scales = wide.abs().amax(-1)
    scales = scales / torch.full_like(scales, largest)
    codes = wide / torch.where(scales > 0, scales, 1.0)[..., None]
    codes = codes.nan_to_num(0.0).clamp(-largest, largest)
    return (codes.round() if dtype == torch.int8 else codes).to(dtype), scales


def dequantize_heads(codes: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the keys or values [..., D] of codes [..., D] and scales [...], rounded once, to `dtype`."""
    return (codes.float() * scales[..., None]).to(dtype)


def dequantize_blocks(blocks: Tensor, dtype: torch.dtype) -> Tensor:
    """Return [..., block_size, D] in `dtype` for blocks [..., block_size, D + 4] of a cache in 8 bits."""
    codes, scales = cached_parts(blocks)
    return dequantize_heads(codes.view(blocks.dtype), scales, dtype)
