"""Products with quantised weights. Those with whole weights are cuBLAS's.

Few rows of x are a matter of bandwidth: their kernel reads the weight as it lies in memory, 8, 5 or 4 bits wide, and
widens it in registers; the inputs are split over programs where the outputs do not fill the device. For many rows
the weight is widened once, into memory, and the product is cuBLAS's.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from pageant.kernels.base import NeededLogits
from pageant.kernels.quantized import GROUP, QuantizedWeight
from pageant.kernels.reference.products import linear as whole_linear
from pageant.kernels.reference.products import logits as whole_logits
from pageant.kernels.tiled import LinearWeight
from pageant.kernels.triton.launching import cdiv, interpreted, processors

__all__ = ["linear", "logits", "multiply_few", "weight_tile", "widen", "widen_rows"]

_FEW = 64  # rows for which the weight is read once, or a few times from the cache
_COLUMNS, _DEPTH = 32, 128
_SPLITS_MAX = 16


def linear(x: Tensor, weight: LinearWeight, bias: Tensor | None = None) -> Tensor:
    """See `Kernels.linear`."""
    if not isinstance(weight, QuantizedWeight):
        return whole_linear(x, weight, bias)
    if x.shape[0] > _FEW:
        return F.linear(x, widen(weight, x.dtype), bias)
    product = _multiply(x, weight, x.dtype if bias is None else torch.float32)
    return product if bias is None else product.add_(bias).to(x.dtype)


def logits(hidden: Tensor, weight: LinearWeight, needed: NeededLogits | None = None) -> Tensor:
    """See `Kernels.logits`."""
    if not isinstance(weight, QuantizedWeight):
        return whole_logits(hidden, weight)
    if hidden.shape[0] > _FEW:
        return whole_logits(hidden, widen(weight, hidden.dtype))
    return _multiply(hidden, weight, torch.float32)


def widen(weight: QuantizedWeight, dtype: torch.dtype) -> Tensor:
    """Return what a weight, or a stack of them, stands for: `quantized.dequantize`, in one launch."""
    inputs = weight.shape[-1]
    output = torch.empty(weight.shape, dtype=dtype, device=weight.values.device)
    rows = output.numel() // max(1, inputs)
    padded = weight.scales.shape[-1] * GROUP
    widen_rows[(rows, cdiv(inputs, 1024))](
        weight.values,
        weight.scales,
        output,
        INPUTS=inputs,
        PADDED=padded,
        BITS=weight.bits,
        DEPTH=1024,
        num_warps=4,
    )
    return output


def _multiply(x: Tensor, weight: QuantizedWeight, dtype: torch.dtype) -> Tensor:
    """x @ weight.T for few rows, in dtype."""
    rows, inputs = x.shape
    outputs = weight.shape[0]
    assert x.stride(1) == 1 or inputs == 1
    padded = weight.scales.shape[-1] * GROUP
    columns, depth = (16, 64) if interpreted(x.device) else (_COLUMNS, _DEPTH)
    programs = cdiv(outputs, columns) * cdiv(rows, 16)
    splits = max(1, min(4 * processors(x.device) // max(1, programs), cdiv(padded, 4 * depth), _SPLITS_MAX))
    partial = torch.empty(
        (splits, rows, outputs), dtype=torch.float32 if splits > 1 else dtype, device=x.device
    )
    multiply_few[(cdiv(outputs, columns), cdiv(rows, 16), splits)](
        x,
        weight.values,
        weight.scales,
        partial,
        rows,
        x.stride(0),
        OUTPUTS=outputs,
        INPUTS=inputs,
        PADDED=padded,
        BITS=weight.bits,
        ROWS=16,
        COLUMNS=columns,
        DEPTH=depth,
        SPLITS=splits,
        PRECISION="tf32x3" if x.dtype == torch.float32 else "ieee",
        num_warps=4,
        num_stages=4,
    )
    return partial[0] if splits == 1 else partial.sum(0).to(dtype)


@triton.jit
def weight_tile(
    values, scales, line, depth, there, PADDED: tl.constexpr, BITS: tl.constexpr, dtype: tl.constexpr
):
    """Inputs `depth` of rows `line` (int64) of a weight, whole (16 bits) or quantised, in dtype. The two broadcast;
    a row is PADDED inputs long. The layout is `pageant.kernels.quantized`'s."""
    if BITS == 16:
        tile = tl.load(values + line * PADDED + depth, mask=there, other=0.0)
    else:
        scale = tl.load(scales + line * (PADDED // 32) + depth // 32, mask=there, other=0.0).to(tl.float32)
        if BITS == 8:
            number = tl.load(values + line * PADDED + depth, mask=there, other=0).to(tl.int32)
        else:
            unit = line * (PADDED // 8 * BITS) + depth // 64 * (8 * BITS)
            byte = tl.load(values + unit + depth % 32, mask=there, other=0).to(tl.int32)
            number = (byte >> (depth // 32 % 2 * 4)) & 15
            if BITS == 5:
                place = unit + 32 + depth // 32 % 2 * 4 + depth % 4
                fifths = tl.load(values + place, mask=there, other=0).to(tl.int32)
                number |= ((fifths >> (depth % 32 // 4)) & 1) << 4
            number -= 1 << (BITS - 1)
        tile = (number.to(tl.float32) * scale).to(dtype)
    return tile


@triton.jit
def widen_rows(
    values,
    scales,
    output,
    INPUTS: tl.constexpr,
    PADDED: tl.constexpr,
    BITS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """Program (row, some inputs)."""
    dtype: tl.constexpr = output.dtype.element_ty
    row = tl.program_id(0).to(tl.int64)
    depth = tl.program_id(1) * DEPTH + tl.arange(0, DEPTH)
    there = depth < INPUTS
    tile = weight_tile(values, scales, row, depth, there, PADDED, BITS, dtype)
    tl.store(output + row * INPUTS + depth, tile, mask=there)


@triton.jit(do_not_specialize=["rows"])
def multiply_few(
    x,
    values,
    scales,
    partial,
    rows,
    stride,
    OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr,
    PADDED: tl.constexpr,
    BITS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    SPLITS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Program (outputs, rows, split of the inputs): its part of partial [SPLITS, rows, OUTPUTS]."""
    dtype: tl.constexpr = x.dtype.element_ty
    SHARE: tl.constexpr = (INPUTS + DEPTH * SPLITS - 1) // (DEPTH * SPLITS) * DEPTH
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    split = tl.program_id(2)
    sums = tl.zeros([ROWS, COLUMNS], dtype=tl.float32)
    for start in range(split * SHARE, tl.minimum((split + 1) * SHARE, INPUTS), DEPTH):
        depth = start + tl.arange(0, DEPTH)
        known = (row[:, None] < rows) & (depth[None, :] < INPUTS)
        left = tl.load(x + row.to(tl.int64)[:, None] * stride + depth[None, :], mask=known, other=0.0)
        there = (depth[:, None] < INPUTS) & (column[None, :] < OUTPUTS)
        line = column.to(tl.int64)[None, :]
        right = weight_tile(values, scales, line, depth[:, None], there, PADDED, BITS, dtype)
        sums = tl.dot(left, right, sums, input_precision=PRECISION)
    place = (split.to(tl.int64) * rows + row)[:, None] * OUTPUTS + column[None, :]
    tl.store(
        partial + place,
        sums.to(partial.dtype.element_ty),
        mask=(row[:, None] < rows) & (column[None, :] < OUTPUTS),
    )
