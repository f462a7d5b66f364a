"""Calls of the library's products, one for each layout of weights."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from pageant.kernels.cpu.library import Functions, Library
from pageant.kernels.low_rank import Addition, LowRank
from pageant.kernels.quantized import QuantizedWeight, Weight
from pageant.kernels.tiled import LinearWeight, TiledWeight

__all__ = [
    "expert_weights",
    "low_rank_products",
    "product",
    "quantized_gated_product",
    "quantized_product",
    "tiled_gated_product",
    "tiled_product",
]

_PARTS = "parts"


def product(
    functions: Functions,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    y: int | None,
    unrounded: int | None,
    needed: Tensor | None = None,
) -> None:
    """Write x @ weight.T + bias, [T, M], at one of two addresses, or the needed part of it (see `narrowing`).

    x: [T, N]. weight: [M, N], of x's dtype. Rows are contiguous, at any stride. `y` is an address for x's
    dtype, `unrounded` one for float32.
    """
    x_stride, x_step = x.stride()
    weight_stride, weight_step = weight.stride()
    if x_step != 1 or weight_step != 1:
        return product(functions, x.contiguous(), weight.contiguous(), bias, y, unrounded, needed)
    functions.linear(
        x.data_ptr(),
        x_stride,
        weight.data_ptr(),
        weight_stride,
        *_results(x, weight, bias, y, unrounded, needed),
    )


def quantized_product(
    functions: Functions,
    x: Tensor,
    weight: QuantizedWeight,
    bias: Tensor | None,
    y: int | None,
    unrounded: int | None,
    rows_alike: int,
    needed: Tensor | None = None,
) -> None:
    """Write what `product` writes, [T, M], for a quantised weight [M, N] and x of any dtype.

    Within up to `rows_alike` rows, and within more, a row's bits do not depend on the others. A weight in tiles
    is for functions that take them.
    """
    x_stride, x_step = x.stride()
    if x_step != 1:
        return quantized_product(functions, x.contiguous(), weight, bias, y, unrounded, rows_alike, needed)
    functions.quantized_linear(
        x.data_ptr(),
        x_stride,
        weight.values.data_ptr(),
        0 if weight.lower is None else weight.lower.data_ptr(),
        weight.scales.data_ptr(),
        weight.bits,
        weight.in_tiles,
        *_results(x, weight, bias, y, unrounded, needed),
        rows_alike,
    )


def tiled_product(
    library: Library,
    x: Tensor,
    weight: TiledWeight,
    bias: Tensor | None,
    y: int | None,
    unrounded: int | None,
    needed: Tensor | None = None,
) -> None:
    """Write what `product` writes, [T, M], for a weight in tiles, all of bfloat16. `library` must have such
    products.
    """
    x_stride, x_step = x.stride()
    if x_step != 1:
        return tiled_product(library, x.contiguous(), weight, bias, y, unrounded, needed)
    assert library.tiled_linear is not None
    library.tiled_linear(
        x.data_ptr(),
        x_stride,
        weight.tiles.data_ptr(),
        *_results(x, weight, bias, y, unrounded, needed),
    )


def _results(
    x: Tensor,
    weight: LinearWeight,
    bias: Tensor | None,
    y: int | None,
    unrounded: int | None,
    needed: Tensor | None,
) -> tuple[int | None, ...]:
    """Return the arguments that follow the factors in these products."""
    bias_at = None if bias is None else bias.data_ptr()
    needed_at = None if needed is None else needed.data_ptr()
    return bias_at, y, unrounded, *x.shape, weight.shape[0], needed_at


def tiled_gated_product(
    library: Library, x: Tensor, weight: TiledWeight, bias: Tensor | None, y: Tensor, activation: int
) -> None:
    """Write act(gate) * up, [T, I], of the product with a weight [2I, N] in tiles, bfloat16.

    `library` must have such products.
    """
    (rows, inputs), (x_stride, x_step) = x.shape, x.stride()
    if x_step != 1:
        return tiled_gated_product(library, x.contiguous(), weight, bias, y, activation)
    bias_at = None if bias is None else bias.data_ptr()
    assert library.gated_linear is not None
    library.gated_linear(
        *(x.data_ptr(), x_stride, weight.tiles.data_ptr(), bias_at, y.data_ptr(), y.stride(0)),
        *(activation, rows, inputs, y.shape[1]),
    )


def quantized_gated_product(
    library: Library, x: Tensor, weight: QuantizedWeight, bias: Tensor | None, y: Tensor, activation: int
) -> None:
    """Write act(gate) * up, [T, I], of the product with a quantised weight [2I, N] in tiles, for many rows of
    bfloat16.

    `library` must have such products.
    """
    if x.stride(1) != 1:
        return quantized_gated_product(library, x.contiguous(), weight, bias, y, activation)
    assert library.quantized_gated_linear is not None
    library.quantized_gated_linear(
        x.data_ptr(),
        x.stride(0),
        weight.values.data_ptr(),
        weight.scales.data_ptr(),
        weight.bits,
        None if bias is None else bias.data_ptr(),
        y.data_ptr(),
        y.stride(0),
        activation,
        *x.shape,
        y.shape[1],
    )


def low_rank_products(functions: Functions, x: Tensor, y: Tensor, additions: Sequence[Addition]) -> None:
    """Add x @ down @ up to y for each adapter's tokens. x: [T, N]. y: [T, M], of the same dtype, mutated."""
    if x.stride(1) != 1:
        x = x.contiguous()
    table = np.array([_row(len(x), *addition) for addition in additions], np.int64)
    functions.add_low_rank(
        *(x.data_ptr(), x.stride(0), y.data_ptr(), y.stride(0), x.shape[1]),
        *(table.ctypes.data, len(table)),
    )


def _row(rows: int, tokens: Tensor | None, low_rank: LowRank) -> tuple[int, ...]:
    """Return an `Addition` of low_rank.cpp. The part of the adapter is kept with it."""
    parts = low_rank.derived.get(_PARTS)
    if parts is None:
        each = zip(low_rank.ups, low_rank.starts, strict=True)
        numbers = [[up.data_ptr(), start, up.shape[1], up.shape[0]] for up, start in each]
        table = np.array(numbers, np.int64)
        down = low_rank.down
        parts = low_rank.derived[_PARTS] = (
            (down.data_ptr(), down.shape[1], table.ctypes.data, len(table)),
            table,
        )
    own = (0, rows) if tokens is None else (tokens.data_ptr(), len(tokens))
    return *own, *parts[0]


def expert_weights(gate_up: Weight, down: Weight) -> tuple[int | None, ...] | None:
    """Return the addresses of both weights with their scales, the bits (0 if not quantised), and whether they
    are in tiles.

    None if one is quantised otherwise than the other.
    """
    if isinstance(gate_up, Tensor) and isinstance(down, Tensor):
        return gate_up.data_ptr(), None, down.data_ptr(), None, 0, False
    if (
        isinstance(gate_up, QuantizedWeight)
        and isinstance(down, QuantizedWeight)
        and gate_up.bits == down.bits
    ):
        parts = gate_up.values, gate_up.scales, down.values, down.scales
        return *(part.data_ptr() for part in parts), gate_up.bits, gate_up.in_tiles
    return None
