"""A linear map that was quantised, and how far it is from what it was."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from pageant.models.errors import CheckpointError
from pageant.models.quantizing.rounding import dequantised
from pageant.models.quantizing.targets import Target
from pageant.models.tensor_files import TensorInfo

__all__ = ["Rounded", "check_finite", "round_off"]


class Rounded(NamedTuple):
    """A linear map that was quantised."""

    target: Target
    codes: Tensor
    """int8 [outputs, inputs]."""
    scales: Tensor
    """float32 [outputs, groups]."""
    error: float
    """Squared norm of what rounding changed."""
    norm: float
    """Squared norm of the weight."""
    tokens: int | None
    """Tokens of calibration that it saw; None without calibration."""


def round_off(
    target: Target, weight: Tensor, codes: Tensor, scales: Tensor, tokens: int | None = None
) -> Rounded:
    """Return a quantised linear map with its error: weight float32 [M, N], codes int8 [M, N], scales float32 [M, G]."""
    error = (dequantised(codes, scales) - weight).square().sum(dtype=torch.float64)
    norm = weight.square().sum(dtype=torch.float64)
    return Rounded(target, codes, scales, float(error), float(norm), tokens)


def check_finite(info: TensorInfo, tensor: Tensor) -> None:
    """Raise CheckpointError for a tensor [*info.shape] of any floating dtype with numbers that are not finite."""
    if not torch.isfinite(tensor).all():
        raise CheckpointError(
            info.file,
            f"{info.name} has numbers that are not finite",
            "weights that can be rounded",
            "Download the file again.",
        )
