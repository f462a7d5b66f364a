"""Products with quantised weights. Those with whole weights are cuBLAS's.

Few rows of x are a matter of bandwidth: the kernel reads the weight as it lies in memory, 8, 5 or 4 bits wide, and
widens it in registers (`unpacking`). The inputs are split over programs where the outputs do not fill the device;
`merge_parts` adds the programs' parts in their order. For very many rows the weight is widened once, into memory, and
the product is cuBLAS's.
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
from pageant.kernels.triton.tuning import quantized_tiles
from pageant.kernels.triton.unpacking import load_tile, pair_inputs, unit_offsets

__all__ = ["linear", "logits", "merge_parts", "multiply_quantized", "widen", "widen_rows"]

_ROWS_MAX = 256  # of x, for which the weight is widened in registers
_STEPS_MIN = 4  # tiles of the inputs that are worth a program of their own
_SPLITS_MAX = 16


def linear(x: Tensor, weight: LinearWeight, bias: Tensor | None = None) -> Tensor:
    """See `Kernels.linear`."""
    if not isinstance(weight, QuantizedWeight):
        return whole_linear(x, weight, bias)
    if x.shape[0] > _ROWS_MAX:
        return F.linear(x, widen(weight, x.dtype), bias)
    return _multiply(x, weight, x.dtype, bias)


def logits(hidden: Tensor, weight: LinearWeight, needed: NeededLogits | None = None) -> Tensor:
    """See `Kernels.logits`."""
    if not isinstance(weight, QuantizedWeight):
        return whole_logits(hidden, weight)
    if hidden.shape[0] > _ROWS_MAX:
        return whole_logits(hidden, widen(weight, hidden.dtype))
    return _multiply(hidden, weight, torch.float32)


def widen(weight: QuantizedWeight, dtype: torch.dtype) -> Tensor:
    """Return what a weight, or a stack of them, stands for, [*weight.shape] of `dtype`, in one launch.

    The numbers are those of `quantized.dequantize`.
    """
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


def _multiply(x: Tensor, weight: QuantizedWeight, dtype: torch.dtype, bias: Tensor | None = None) -> Tensor:
    """x @ weight.T + bias, in dtype."""
    rows, inputs = x.shape
    outputs, padded = weight.shape[0], weight.scales.shape[-1] * GROUP
    assert x.stride(1) == 1 or inputs == 1
    tiles = quantized_tiles(rows, x.dtype, x.device)
    steps = cdiv(padded, tiles.depth)
    grid = cdiv(outputs, tiles.columns), cdiv(rows, tiles.rows)
    share = _steps_of_a_program(grid[0] * grid[1], steps, x.device)
    splits = cdiv(steps, share)
    output = torch.empty((rows, outputs), dtype=dtype, device=x.device)
    parts = output
    if splits > 1:
        parts = torch.empty((splits, rows, outputs), dtype=torch.float32, device=x.device)
    multiply_quantized[(*grid, splits)](
        x,
        weight.values,
        weight.scales,
        bias if splits == 1 else None,
        parts,
        rows,
        x.stride(0),
        share,
        OUTPUTS=outputs,
        INPUTS=inputs,
        PADDED=padded,
        BITS=weight.bits,
        ROWS=tiles.rows,
        COLUMNS=tiles.columns,
        DEPTH=tiles.depth,
        EVEN=inputs % tiles.depth == 0,
        FAST=x.dtype == torch.bfloat16 and not interpreted(x.device),
        WEIGHTS_FIRST=tiles.weights_first,
        PRECISION="tf32x3" if x.dtype == torch.float32 else "ieee",
        num_warps=tiles.warps,
        num_stages=tiles.stages,
    )
    if splits > 1:
        columns = 1024
        merge_parts[(rows, cdiv(outputs, columns))](
            parts, bias, output, rows * outputs, splits, OUTPUTS=outputs, COLUMNS=columns, num_warps=4
        )
    return output


def _steps_of_a_program(programs: int, steps: int, device: torch.device) -> int:
    """Return the number of input tiles of a program: few enough to fill the device, enough to be worth a program."""
    splits = max(1, min(4 * processors(device) // max(1, programs), steps // _STEPS_MIN, _SPLITS_MAX))
    return cdiv(steps, splits)


@triton.jit
def _weight_tile(
    values, scales, line, depth, there, PADDED: tl.constexpr, BITS: tl.constexpr, dtype: tl.constexpr
):
    """Inputs `depth` of rows `line` (int64) of a quantised weight, in dtype. The two broadcast;
    a row is PADDED inputs long. The layout is `pageant.kernels.quantized`'s."""
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
    return (number.to(tl.float32) * scale).to(dtype)


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
    tile = _weight_tile(values, scales, row, depth, there, PADDED, BITS, dtype)
    tl.store(output + row * INPUTS + depth, tile, mask=there)


@triton.jit(do_not_specialize=["rows", "share"])
def multiply_quantized(
    x,
    values,
    scales,
    bias,
    parts,
    rows,
    stride,
    share,
    OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr,
    PADDED: tl.constexpr,
    BITS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    EVEN: tl.constexpr,
    FAST: tl.constexpr,
    WEIGHTS_FIRST: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Program (outputs, rows, split of the inputs, `share` tiles each): its part of parts [splits, rows, OUTPUTS].

    With WEIGHTS_FIRST the transposed product is computed: the weight's tile stays in the registers that it was widened
    in. Otherwise it goes through shared memory, which is where Hopper's products of many rows read it.
    """
    dtype: tl.constexpr = x.dtype.element_ty
    PAIRED: tl.constexpr = WEIGHTS_FIRST and FAST and BITS == 8
    STEPS: tl.constexpr = (PADDED + DEPTH - 1) // DEPTH
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    split = tl.program_id(2)
    line = tl.minimum(column, OUTPUTS - 1).to(tl.int64)
    offset = unit_offsets(BITS, DEPTH)
    known = row < rows
    lines = x + row.to(tl.int64)[:, None] * stride
    shape: tl.constexpr = [COLUMNS, ROWS] if WEIGHTS_FIRST else [ROWS, COLUMNS]
    sums = tl.zeros(shape, dtype=tl.float32)
    for step in range(split * share, tl.minimum((split + 1) * share, STEPS)):
        depth = step * DEPTH + offset
        low, high = load_tile(
            values, scales, line, step * DEPTH,
            PADDED, BITS, COLUMNS, DEPTH, EVEN, FAST, PAIRED, dtype,
        )  # fmt: skip
        left = _load_inputs(lines, depth, known, INPUTS, EVEN)
        if PAIRED:
            left = pair_inputs(left)
        sums = _add_product(sums, left, low, WEIGHTS_FIRST, PRECISION)
        if BITS != 8:
            left = _load_inputs(lines, depth + 32, known, INPUTS, EVEN)
            sums = _add_product(sums, left, high, WEIGHTS_FIRST, PRECISION)
    if WEIGHTS_FIRST:
        sums = tl.trans(sums)
    written = known[:, None] & (column[None, :] < OUTPUTS)
    if bias is not None:
        sums += tl.load(bias + column, mask=column < OUTPUTS, other=0.0).to(tl.float32)[None, :]
    place = (split.to(tl.int64) * rows + row)[:, None] * OUTPUTS + column[None, :]
    tl.store(parts + place, sums.to(parts.dtype.element_ty), mask=written)


@triton.jit
def _load_inputs(lines, depth, known, INPUTS: tl.constexpr, EVEN: tl.constexpr):
    """Inputs `depth` of some rows of x; 0 where there are none."""
    if EVEN:
        loaded = tl.load(lines + depth[None, :], mask=known[:, None], other=0.0)
    else:
        loaded = tl.load(lines + depth[None, :], mask=known[:, None] & (depth < INPUTS)[None, :], other=0.0)
    return loaded


@triton.jit
def _add_product(sums, left, right, WEIGHTS_FIRST: tl.constexpr, PRECISION: tl.constexpr):
    """sums + left @ right.T, or its transpose."""
    if WEIGHTS_FIRST:
        sums = tl.dot(right, tl.trans(left), sums, input_precision=PRECISION)
    else:
        sums = tl.dot(left, tl.trans(right), sums, input_precision=PRECISION)
    return sums


@triton.jit(do_not_specialize=["splits"])
def merge_parts(parts, bias, output, size, splits, OUTPUTS: tl.constexpr, COLUMNS: tl.constexpr):
    """Program (row, some outputs): adds the parts [splits, rows, OUTPUTS] in their order, each `size` numbers apart."""
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    there = column < OUTPUTS
    place = tl.program_id(0).to(tl.int64) * OUTPUTS + column
    total = tl.zeros([COLUMNS], dtype=tl.float32)
    for split in range(splits):
        total += tl.load(parts + tl.cast(split, tl.int64) * size + place, mask=there, other=0.0)
    if bias is not None:
        total += tl.load(bias + column, mask=there, other=0.0).to(tl.float32)
    tl.store(output + place, total.to(output.dtype.element_ty), mask=there)
