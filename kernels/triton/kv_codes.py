"""Keys and values in 8 bits on a GPU: codes and scales of heads, and back (see `pageant.kernels.quantized_kv`).

Codes are int8 in either format. Those of fp8 are converted by operations on bits, so that every architecture has the
same numbers, whether or not it knows the type.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = ["encode", "format_of", "numbers", "raw", "row_place", "scale_of", "scale_places"]

_FORMATS = {torch.int8: "int8", torch.float8_e4m3fn: "fp8"}


def format_of(cache: Tensor) -> str:
    """Return the format of a KV cache [...], as kernels take it: empty where it is in the model's dtype."""
    return _FORMATS.get(cache.dtype, "")


def raw(cache: Tensor) -> Tensor:
    """Return a KV cache [...] as kernels take it: as int8 where it is in 8 bits."""
    return cache.view(torch.int8) if cache.dtype in _FORMATS else cache


@triton.jit
def row_place(head, offset, BLOCK_SIZE: tl.constexpr, DIM: tl.constexpr, FORMAT: tl.constexpr):
    """Places of the first numbers of tokens, by their offsets in a block. Heads are numbered over all blocks."""
    WIDTH: tl.constexpr = DIM + 4 if FORMAT != "" else DIM
    return head * (BLOCK_SIZE * WIDTH) + offset * DIM


@triton.jit
def scale_places(cache, head, offset, BLOCK_SIZE: tl.constexpr, DIM: tl.constexpr):
    """Pointers to the float32 scales of tokens, by their offsets in a block. Heads are numbered over all blocks."""
    place = cache + head * (BLOCK_SIZE * (DIM + 4)) + BLOCK_SIZE * DIM + offset * 4
    return place.to(tl.pointer_type(tl.float32))


@triton.jit
def numbers(codes, FORMAT: tl.constexpr):
    """Codes as float32, without their scale."""
    if FORMAT == "fp8":
        # As float16 they are 2**8 too small, subnormal ones too.
        bits = ((codes.to(tl.int16) << 8) >> 1) & -16385
        found = bits.to(tl.float16, bitcast=True).to(tl.float32) * 256.0
    else:
        found = codes.to(tl.float32)
    return found


@triton.jit
def scale_of(largest, zeros, FORMAT: tl.constexpr):
    """The scale of heads, by the largest size of their numbers; NaN where `zeros`, the sum of zero times each, is."""
    LARGEST: tl.constexpr = 448.0 if FORMAT == "fp8" else 127.0
    return tl.math.div_rn(largest, tl.full(largest.shape, LARGEST, tl.float32)) + zeros


@triton.jit
def encode(x, scale, FORMAT: tl.constexpr):
    """Codes of x, float32, by scales of its shape; to nearest, ties to even."""
    x = tl.math.div_rn(x, tl.where(scale > 0, scale, 1.0))
    if FORMAT == "fp8":
        x = tl.minimum(tl.maximum(x, -448.0), 448.0)
        bits = x.to(tl.int32, bitcast=True)
        size = bits & 0x7FFFFFFF
        # Subnormal numbers are rounded by adding a number whose last bit has the weight of theirs.
        small = (tl.abs(x) + 16384.0).to(tl.int32, bitcast=True) - 0x46800000
        normal = (size - 0x3C000000 + 0x7FFFF + ((size >> 20) & 1)) >> 20
        codes = tl.where(size < 0x3C800000, small, normal) | ((bits >> 24) & 0x80)
    else:
        x = tl.minimum(tl.maximum(x, -127.0), 127.0)
        codes = (x + 12582912.0).to(
            tl.int32, bitcast=True
        )  # 1.5 * 2**23, whose last bit has the weight of one
    return codes.to(tl.int8)
