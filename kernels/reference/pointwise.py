"""Rotary embedding, activations, and columns in another order."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["clamped_swiglu", "gather_columns", "gelu", "gelu_and_mul", "rope", "silu_and_mul"]


def rope(query: Tensor, key: Tensor, cos_sin_cache: Tensor, positions: Tensor) -> None:
    """See `Kernels.rope`."""
    cos, sin = cos_sin_cache.index_select(0, positions)[:, None].chunk(2, dim=-1)  # [T, 1, R/2] each
    rotary_dim = cos_sin_cache.shape[1]
    _rotate(query[..., :rotary_dim], cos, sin)
    _rotate(key[..., :rotary_dim], cos, sin)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> None:
    """Mutates x [T, heads, R]."""
    first, second = x.float().chunk(2, dim=-1)
    x.copy_(torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1))


def silu_and_mul(gate_up: Tensor) -> Tensor:
    """See `Kernels.silu_and_mul`."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate).mul_(up)


def gelu_and_mul(gate_up: Tensor, tanh: bool) -> Tensor:
    """See `Kernels.gelu_and_mul`."""
    gate, up = gate_up.chunk(2, dim=-1)
    return gelu(gate, tanh).mul_(up)


def clamped_swiglu(gate_up: Tensor) -> Tensor:
    """See `Kernels.clamped_swiglu`."""
    gate, up = gate_up.float().chunk(2, dim=-1)
    gate, up = gate.clamp(max=7.0), up.clamp(-7.0, 7.0)
    return (gate * torch.sigmoid(1.702 * gate) * (up + 1)).to(gate_up.dtype)


def gelu(x: Tensor, tanh: bool) -> Tensor:
    """See `Kernels.gelu`."""
    return F.gelu(x, approximate="tanh" if tanh else "none")


def gather_columns(x: Tensor, order: Tensor) -> Tensor:
    """Return x [T, N] of any dtype with its columns in another order; see `Kernels.gather_columns`."""
    return x.index_select(1, order)
