"""Products with weights, quantised or not, and rows of them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from pageant.kernels.base import NeededLogits
from pageant.kernels.panels import PANEL_ROWS
from pageant.kernels.quantized import QuantizedWeight, dequantize
from pageant.kernels.tiled import LinearWeight, TiledWeight

__all__ = ["embed", "embed_share", "linear", "logits"]

_CHUNK = 1 << 22  # numbers of a head that are widened at a time


def linear(x: Tensor, weight: LinearWeight, bias: Tensor | None = None) -> Tensor:
    """See `Kernels.linear`."""
    return F.linear(x, _plain(weight, x.dtype), bias)


def logits(hidden: Tensor, weight: LinearWeight, needed: NeededLogits | None = None) -> Tensor:
    """See `Kernels.logits`. On a CPU the head is widened part by part: it is never there in float32 whole."""
    if hidden.is_cuda and hidden.dtype != torch.float32:
        return torch.mm(hidden, _plain(weight, hidden.dtype).T, out_dtype=torch.float32)
    wide = hidden.float()
    size = max(1, _CHUNK // weight.shape[1] // PANEL_ROWS) * PANEL_ROWS
    parts = [
        F.linear(wide, _plain(weight[start : start + size], hidden.dtype).float())
        for start in range(0, weight.shape[0], size)
    ]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


def embed(token_ids: Tensor, weight: LinearWeight, dtype: torch.dtype) -> Tensor:
    """See `Kernels.embed`."""
    if isinstance(weight, QuantizedWeight):
        return dequantize(weight.in_rows()[token_ids], dtype)
    return F.embedding(token_ids, _plain(weight, dtype))


def embed_share(token_ids: Tensor, weight: LinearWeight, first: int, dtype: torch.dtype) -> Tensor:
    """See `Kernels.embed_share`."""
    rows = weight.shape[0]
    local = token_ids - first
    is_here = (local >= 0) & (local < rows)
    return embed(local.clamp(0, rows - 1), weight, dtype).float() * is_here.unsqueeze(1)


def _plain(weight: LinearWeight, dtype: torch.dtype) -> Tensor:
    if isinstance(weight, TiledWeight):
        return weight.plain()
    return dequantize(weight, dtype) if isinstance(weight, QuantizedWeight) else weight
