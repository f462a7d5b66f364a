"""Norms over the last dimension, alone and after the addition of a residual."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

__all__ = [
    "add_layer_norm",
    "add_rms_norm",
    "add_wide_rms_norm",
    "layer_norm",
    "rms_norm",
    "wide_rms_norm",
]


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """See `Kernels.rms_norm`."""
    return _normalise(x, eps).to(x.dtype).mul_(weight)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """See `Kernels.add_rms_norm`."""
    total = x + residual
    return rms_norm(total, weight, eps), total


def wide_rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """See `Kernels.wide_rms_norm`."""
    return _normalise(x, eps).mul_(weight).to(x.dtype)


def add_wide_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """See `Kernels.add_wide_rms_norm`."""
    total = x + residual
    return wide_rms_norm(total, weight, eps), total


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """See `Kernels.layer_norm`."""
    return F.layer_norm(x.float(), weight.shape, weight.float(), bias.float(), eps).to(x.dtype)


def add_layer_norm(
    x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """See `Kernels.add_layer_norm`."""
    total = x + residual
    return layer_norm(total, weight, bias, eps), total


def _normalise(x: Tensor, eps: float) -> Tensor:
    """Return x over its root mean square, a new tensor in float32."""
    wide = x.float()
    return wide * wide.square().mean(dim=-1, keepdim=True).add_(eps).rsqrt_()
