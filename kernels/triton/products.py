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
from pageant.kernels.triton.tuning import Quantized, quantized_tiles, ragged_tiles
from pageant.kernels.triton.unpacking import load_tile, pair_inputs, unit_offsets

__all__ = ["linear", "logits", "merge_parts", "multiply_quantized", "multiply_sliced", "widen", "widen_rows"]

_ROWS_MAX = 256  # of x, for which the weight is widened in registers
_STEPS_MIN, _INPUTS_MIN = 4, 512  # tiles of the inputs, or inputs, that are worth a program of their own
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
    split = _Split(quantized_tiles(rows, weight.bits, x.dtype, x.device), rows, weight, x.device)
    if not split.even(inputs):
        split = _Split(ragged_tiles(rows, weight.bits, x.dtype, x.device), rows, weight, x.device)
    tiles, grid, share, splits = split.tiles, split.grid, split.share, split.splits
    output = torch.empty((rows, outputs), dtype=dtype, device=x.device)
    parts = output
    if splits > 1:
        parts = torch.empty((splits, rows, outputs), dtype=torch.float32, device=x.device)
    arguments = (
        x,
        weight.values,
        weight.scales,
        bias if splits == 1 else None,
        parts,
        rows,
        x.stride(0),
        share,
    )
    constants = {
        "OUTPUTS": outputs,
        "INPUTS": inputs,
        "PADDED": padded,
        "BITS": weight.bits,
        "ROWS": tiles.rows,
        "COLUMNS": tiles.columns,
        "DEPTH": tiles.depth,
        "FAST": x.dtype == torch.bfloat16 and not interpreted(x.device),
        "PRECISION": "tf32x3" if x.dtype == torch.float32 else "ieee",
        "num_warps": tiles.warps,
        "num_stages": tiles.stages,
    }
    if tiles.slices > 1:
        multiply_sliced[(*grid, splits)](*arguments, SLICES=tiles.slices, **constants)
    else:
        multiply_quantized[(*grid, splits)](
            *arguments, EVEN=split.even(inputs), WEIGHTS_FIRST=tiles.weights_first, **constants
        )
    if splits > 1:
        columns = 1024
        merge_parts[(rows, cdiv(outputs, columns))](
            parts, bias, output, rows * outputs, splits, OUTPUTS=outputs, COLUMNS=columns, num_warps=4
        )
    return output


class _Split:
    """Shares of a product: its tiles, the programs for its rows and outputs, and the splits of the inputs."""

    def __init__(self, tiles: Quantized, rows: int, weight: QuantizedWeight, device: torch.device) -> None:
        outputs, padded = weight.shape[0], weight.scales.shape[-1] * GROUP
        steps = cdiv(padded, tiles.depth)
        self.tiles = tiles
        self.grid = cdiv(rows, tiles.rows), cdiv(outputs, tiles.columns)
        wanted = tiles.programs * processors(device) // max(1, self.grid[0] * self.grid[1])
        self.share = _steps_of_a_slice(steps, tiles, wanted)
        """Tiles of the inputs in a slice."""
        self.splits = cdiv(steps, self.share * tiles.slices)

    def even(self, inputs: int) -> bool:
        """Tell whether the inputs are whole tiles, or whole slices where there are slices."""
        depth, slices = self.tiles.depth, self.tiles.slices
        return inputs % depth == 0 if slices == 1 else inputs == self.splits * slices * self.share * depth


def _steps_of_a_slice(steps: int, tiles: Quantized, wanted: int) -> int:
    """Return the tiles of a slice: few, so that there are as many programs as wanted; enough to be worth one."""
    least = min(_STEPS_MIN, cdiv(_INPUTS_MIN, tiles.depth))
    splits = max(1, min(wanted, steps // (least * tiles.slices), _SPLITS_MAX))
    return cdiv(steps, splits * tiles.slices)


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
    """Program (rows, outputs, split of the inputs, `share` tiles each): its part of parts [splits, rows, OUTPUTS].

    With WEIGHTS_FIRST the transposed product is computed: the weight's tile stays in the registers that it was widened
    in. Otherwise it goes through shared memory, which is where Hopper's products of many rows read it.
    """
    dtype: tl.constexpr = x.dtype.element_ty
    PAIRED: tl.constexpr = WEIGHTS_FIRST and FAST and BITS == 8
    STEPS: tl.constexpr = (PADDED + DEPTH - 1) // DEPTH
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    split = tl.program_id(2)
    line = tl.minimum(column, OUTPUTS - 1).to(tl.int64)
    offset = unit_offsets(BITS, DEPTH)
    known = row < rows
    lines = x + row.to(tl.int64)[:, None] * stride
    offset = offset[None, :]
    shape: tl.constexpr = [COLUMNS, ROWS] if WEIGHTS_FIRST else [ROWS, COLUMNS]
    sums = tl.zeros(shape, dtype=tl.float32)
    for step in range(split * share, tl.minimum((split + 1) * share, STEPS)):
        depth = step * DEPTH + offset
        low, high = load_tile(
            values, scales, line[:, None], step * DEPTH,
            PADDED, BITS, DEPTH, EVEN, FAST, PAIRED, dtype,
        )  # fmt: skip
        left = _load_inputs(lines, depth, known[:, None], INPUTS, EVEN)
        if PAIRED:
            left = pair_inputs(left)
        sums = _add_product(sums, left, low, WEIGHTS_FIRST, PRECISION)
        if BITS != 8:
            left = _load_inputs(lines, depth + 32, known[:, None], INPUTS, EVEN)
            sums = _add_product(sums, left, high, WEIGHTS_FIRST, PRECISION)
    if WEIGHTS_FIRST:
        sums = tl.trans(sums)
    _store_part(sums, bias, parts, split, row, rows, column, OUTPUTS)


@triton.jit(do_not_specialize=["rows", "share"])
def multiply_sliced(
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
    SLICES: tl.constexpr,
    FAST: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Program (rows, outputs, split of the inputs): its part of parts [splits, rows, OUTPUTS].

    A split is of SLICES slices, of `share` tiles each, and the splits are all inputs. A warp has a slice to itself, for
    all of the program's outputs and rows: so many warps wait for memory at once, and their sums need not go through
    memory to be added.
    """
    dtype: tl.constexpr = x.dtype.element_ty
    PAIRED: tl.constexpr = FAST and BITS == 8
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    split = tl.program_id(2)
    line = tl.minimum(column, OUTPUTS - 1).to(tl.int64)[None, :, None]
    offset = unit_offsets(BITS, DEPTH)[None, None, :]
    first = ((split * SLICES + tl.arange(0, SLICES)) * share * DEPTH)[:, None, None]
    known = (row < rows)[None, :, None]
    lines = x + row.to(tl.int64)[None, :, None] * stride
    sums = tl.zeros([SLICES, COLUMNS, ROWS], dtype=tl.float32)
    for step in range(share):
        start = first + step * DEPTH
        low, high = load_tile(
            values, scales, line, start, PADDED, BITS, DEPTH, True, FAST, PAIRED, dtype
        )  # fmt: skip
        left = _load_inputs(lines, start + offset, known, INPUTS, True)
        if PAIRED:
            left = pair_inputs(left)
        sums = tl.dot(low, tl.permute(left, (0, 2, 1)), sums, input_precision=PRECISION)
        if BITS != 8:
            left = _load_inputs(lines, start + offset + 32, known, INPUTS, True)
            sums = tl.dot(high, tl.permute(left, (0, 2, 1)), sums, input_precision=PRECISION)
    _store_part(tl.trans(tl.sum(sums, 0)), bias, parts, split, row, rows, column, OUTPUTS)


@triton.jit
def _store_part(sums, bias, parts, split, row, rows, column, OUTPUTS: tl.constexpr):
    """Store sums [ROWS, COLUMNS] where they belong in parts [splits, rows, OUTPUTS]."""
    if bias is not None:
        sums += tl.load(bias + column, mask=column < OUTPUTS, other=0.0).to(tl.float32)[None, :]
    there = (row < rows)[:, None] & (column < OUTPUTS)[None, :]
    place = (split.to(tl.int64) * rows + row)[:, None] * OUTPUTS + column[None, :]
    tl.store(parts + place, sums.to(parts.dtype.element_ty), mask=there)


@triton.jit
def _load_inputs(lines, depth, known, INPUTS: tl.constexpr, EVEN: tl.constexpr):
    """Inputs `depth` [..., DEPTH] of some rows of x; 0 where there are none."""
    return tl.load(lines + depth, mask=known if EVEN else known & (depth < INPUTS), other=0.0)


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
