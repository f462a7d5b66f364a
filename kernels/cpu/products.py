"""Weights as the library's products take them."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from pageant.kernels.cpu.library import Functions
from pageant.kernels.low_rank import LowRank
from pageant.kernels.quantized import QuantizedWeight, Weight

__all__ = ["expert_weights", "low_rank_product", "product", "quantized_product"]

_PARTS = "parts"


def product(
    functions: Functions,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    y: int | None,
    unrounded: int | None,
) -> None:
    """Write x @ weight.T + bias at one of two addresses. Rows may be any distance apart, but are whole themselves."""
    (rows, inputs), (x_stride, x_step) = x.shape, x.stride()
    weight_stride, weight_step = weight.stride()
    if x_step != 1 or weight_step != 1:
        return product(functions, x.contiguous(), weight.contiguous(), bias, y, unrounded)
    functions.linear(
        x.data_ptr(),
        x_stride,
        weight.data_ptr(),
        weight_stride,
        None if bias is None else bias.data_ptr(),
        y,
        unrounded,
        rows,
        inputs,
        weight.shape[0],
    )


def quantized_product(
    functions: Functions,
    x: Tensor,
    weight: QuantizedWeight,
    bias: Tensor | None,
    y: int | None,
    unrounded: int | None,
) -> None:
    (rows, inputs), (x_stride, x_step) = x.shape, x.stride()
    if x_step != 1:
        return quantized_product(functions, x.contiguous(), weight, bias, y, unrounded)
    functions.quantized_linear(
        x.data_ptr(),
        x_stride,
        weight.values.data_ptr(),
        weight.scales.data_ptr(),
        weight.bits,
        None if bias is None else bias.data_ptr(),
        y,
        unrounded,
        rows,
        inputs,
        weight.shape[0],
    )


def low_rank_product(
    functions: Functions, x: Tensor, y: Tensor, tokens: Tensor | None, low_rank: LowRank
) -> None:
    """Add x @ down @ up to y."""
    if x.stride(1) != 1:
        x = x.contiguous()
    parts = low_rank.derived.get(_PARTS)
    if parts is None:
        rows = zip(low_rank.ups, low_rank.starts, strict=True)
        table = [[up.data_ptr(), start, up.shape[1], up.shape[0]] for up, start in rows]
        parts = low_rank.derived[_PARTS] = np.array(table, np.int64)
    functions.add_low_rank(
        *(x.data_ptr(), x.stride(0), y.data_ptr(), y.stride(0)),
        *((None, len(x)) if tokens is None else (tokens.data_ptr(), len(tokens))),
        *(low_rank.down.data_ptr(), *low_rank.down.shape),
        *(parts.ctypes.data, len(parts)),
    )


def expert_weights(gate_up: Weight, down: Weight) -> tuple[int | None, ...] | None:
    """Addresses of both with their scales, and bits, 0 if they are not quantised; None where they are unlike."""
    if isinstance(gate_up, Tensor) and isinstance(down, Tensor):
        return gate_up.data_ptr(), None, down.data_ptr(), None, 0
    if (
        isinstance(gate_up, QuantizedWeight)
        and isinstance(down, QuantizedWeight)
        and gate_up.bits == down.bits
    ):
        parts = gate_up.values, gate_up.scales, down.values, down.scales
        return *(part.data_ptr() for part in parts), gate_up.bits
    return None
