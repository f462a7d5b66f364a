"""Activations."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from pageant.kernels.triton.launching import cdiv, next_power_of_2
from pageant.kernels.triton.mathematics import activate, gate_by

__all__ = ["activate_rows", "clamped_swiglu", "gelu", "gelu_and_mul", "silu_and_mul"]

_COLUMNS = 1024  # of a tile


def silu_and_mul(gate_up: Tensor) -> Tensor:
    """See `Kernels.silu_and_mul`."""
    return _activate(gate_up, "silu", gated=True)


def gelu_and_mul(gate_up: Tensor, tanh: bool) -> Tensor:
    """See `Kernels.gelu_and_mul`."""
    return _activate(gate_up, "gelu_tanh" if tanh else "gelu", gated=True)


def clamped_swiglu(gate_up: Tensor) -> Tensor:
    """See `Kernels.clamped_swiglu`."""
    return _activate(gate_up, "clamped_swiglu", gated=True)


def gelu(x: Tensor, tanh: bool) -> Tensor:
    """See `Kernels.gelu`."""
    return _activate(x.reshape(-1, x.shape[-1]), "gelu_tanh" if tanh else "gelu", gated=False).view(x.shape)


def _activate(x: Tensor, activation: str, *, gated: bool) -> Tensor:
    rows, width = x.shape
    size = width // 2 if gated else width
    assert x.stride(1) == 1 or width == 1
    output = torch.empty((rows, size), dtype=x.dtype, device=x.device)
    columns = min(_COLUMNS, next_power_of_2(max(1, size)))
    activate_rows[(rows, cdiv(size, columns))](
        x,
        output,
        x.stride(0),
        SIZE=size,
        COLUMNS=columns,
        ACTIVATION=activation,
        GATED=gated,
        num_warps=max(1, columns // 256),
    )
    return output


@triton.jit
def activate_rows(
    x,
    output,
    stride,
    SIZE: tl.constexpr,
    COLUMNS: tl.constexpr,
    ACTIVATION: tl.constexpr,
    GATED: tl.constexpr,
):
    """Program (row, some columns). What is gated is rounded before it is multiplied, as the reference does."""
    dtype: tl.constexpr = output.dtype.element_ty
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    there = column < SIZE
    values = tl.load(x + row * stride + column, mask=there, other=0.0)
    if GATED:
        up = tl.load(x + row * stride + SIZE + column, mask=there, other=0.0)
        values = gate_by(values, up, ACTIVATION, dtype)
    else:
        values = activate(values.to(tl.float32), ACTIVATION).to(dtype)
    tl.store(output + row * SIZE + column, values, mask=there)
