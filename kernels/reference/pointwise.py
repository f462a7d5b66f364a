"""Norms, rotary embedding and the gated activation."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["add_rms_norm", "rms_norm", "rope", "silu_and_mul"]


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """See `Kernels.rms_norm`."""
    wide = x.float()
    scale = wide.square().mean(dim=-1, keepdim=True).add_(eps).rsqrt_()
    return (wide * scale).to(x.dtype).mul_(weight)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """See `Kernels.add_rms_norm`."""
    total = x + residual
    return rms_norm(total, weight, eps), total


def rope(query: Tensor, key: Tensor, cos_sin_cache: Tensor, positions: Tensor) -> None:
    """See `Kernels.rope`."""
    cos, sin = cos_sin_cache.index_select(0, positions)[:, None].chunk(2, dim=-1)  # [T, 1, D/2] each
    _rotate(query, cos, sin)
    _rotate(key, cos, sin)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> None:
    """Mutates x [T, heads, D]."""
    first, second = x.float().chunk(2, dim=-1)
    x.copy_(torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1))


def silu_and_mul(gate_up: Tensor) -> Tensor:
    """See `Kernels.silu_and_mul`."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate).mul_(up)
