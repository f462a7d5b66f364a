"""Norms over the last dimension, alone and after the addition of a residual: one pass, one program a few rows."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from pageant.kernels.triton.launching import cdiv, next_power_of_2

__all__ = [
    "add_layer_norm",
    "add_rms_norm",
    "add_wide_rms_norm",
    "layer_norm",
    "norm_rows",
    "rms_norm",
    "wide_rms_norm",
]

_ELEMENTS = 4096  # of a program's tile: short rows (a head's) share one


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """See `Kernels.rms_norm`."""
    return _norm(x, None, weight, None, eps, "rms")[0]


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """See `Kernels.add_rms_norm`."""
    return _norm(x, residual, weight, None, eps, "rms")


def wide_rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """See `Kernels.wide_rms_norm`."""
    return _norm(x, None, weight, None, eps, "wide")[0]


def add_wide_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """See `Kernels.add_wide_rms_norm`."""
    return _norm(x, residual, weight, None, eps, "wide")


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """See `Kernels.layer_norm`."""
    return _norm(x, None, weight, bias, eps, "layer")[0]


def add_layer_norm(
    x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """See `Kernels.add_layer_norm`."""
    return _norm(x, residual, weight, bias, eps, "layer")


def _norm(
    x: Tensor, residual: Tensor | None, weight: Tensor, bias: Tensor | None, eps: float, kind: str
) -> tuple[Tensor, Tensor]:
    """Return (norm, x + residual), or (norm, x)."""
    size = x.shape[-1]
    # Row r is x[r // inner, r % inner]: a head of a token, where x is cut from a fused projection.
    view = x if x.dim() == 3 else x.reshape(-1, 1, size)
    assert view.stride(2) == 1 or size == 1
    assert residual is None or residual.stride(-1) == 1 or size == 1
    output = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    total = x if residual is None else torch.empty(x.shape, dtype=x.dtype, device=x.device)
    rows = view.shape[0] * view.shape[1]
    width = next_power_of_2(size)
    together = max(1, min(_ELEMENTS // width, next_power_of_2(max(1, rows))))
    norm_rows[(cdiv(rows, together),)](
        view,
        residual,
        weight,
        bias,
        output,
        total,
        rows,
        view.shape[1],
        view.stride(0),
        view.stride(1),
        0 if residual is None else residual.stride(0),
        eps,
        SIZE=size,
        WIDTH=width,
        TOGETHER=together,
        KIND=kind,
        ADDS=residual is not None,
        num_warps=min(16, max(1, width * together // 512)),
    )
    return output, total


@triton.jit(do_not_specialize=["rows", "inner"])
def norm_rows(
    x,
    residual,
    weight,
    bias,
    output,
    total,
    rows,
    inner,
    outer_stride,
    inner_stride,
    residual_stride,
    eps,
    SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
    TOGETHER: tl.constexpr,
    KIND: tl.constexpr,
    ADDS: tl.constexpr,
):
    """Rounds where the reference rounds: the sum, and an RMS norm before its weight."""
    dtype: tl.constexpr = output.dtype.element_ty
    row = (tl.program_id(0) * TOGETHER + tl.arange(0, TOGETHER)).to(tl.int64)[:, None]
    column = tl.arange(0, WIDTH)[None, :]
    there = (row < rows) & (column < SIZE)
    values = tl.load(
        x + row // inner * outer_stride + row % inner * inner_stride + column, mask=there, other=0.0
    )
    if ADDS:
        values += tl.load(residual + row * residual_stride + column, mask=there, other=0.0)
        tl.store(total + row * SIZE + column, values, mask=there)
    values = values.to(tl.float32)
    factor = tl.load(weight + column, mask=column < SIZE, other=0.0)
    if KIND == "layer":
        values -= tl.sum(values, 1, keep_dims=True) / SIZE
        values = tl.where(there, values, 0.0)
    values *= tl.rsqrt(tl.sum(values * values, 1, keep_dims=True) / SIZE + eps)
    if KIND == "layer":
        shift = tl.load(bias + column, mask=column < SIZE, other=0.0)
        normed = (values * factor.to(tl.float32) + shift.to(tl.float32)).to(dtype)
    elif KIND == "wide":
        normed = (values * factor.to(tl.float32)).to(dtype)
    else:
        normed = (values.to(dtype) * factor).to(dtype)
    tl.store(output + row * SIZE + column, normed, mask=there)
