"""A norm: its weights, and the kernels that compute it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from pageant.kernels.base import Kernels
from pageant.models.spec import NormSpec
from pageant.models.weights import Weights

__all__ = ["Norm"]


class Norm:
    """Normalises the last dimension, alone or of a sum."""

    def __init__(self, spec: NormSpec, name: str, weights: Weights, kernels: Kernels) -> None:
        self._alone, self._added = _kernels(spec, kernels)
        self._arguments: tuple[Tensor | float, ...] = (weights[f"{name}.weight"], spec.eps)
        if spec.kind == "layer":
            weight = weights[f"{name}.weight"]
            bias = weights[f"{name}.bias"] if spec.bias else torch.zeros_like(weight)
            self._arguments = (weight, bias, spec.eps)

    def __call__(self, x: Tensor) -> Tensor:
        """Return the norm of x, of its shape and dtype."""
        return self._alone(x, *self._arguments)

    def add(self, x: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the norm of the sum of x and residual, [T, N] each of one dtype, and the sum; None is nothing."""
        if residual is None:
            return self._alone(x, *self._arguments), x
        return self._added(x, residual, *self._arguments)


def _kernels(
    spec: NormSpec, kernels: Kernels
) -> tuple[Callable[..., Tensor], Callable[..., tuple[Tensor, Tensor]]]:
    if spec.kind == "layer":
        return kernels.layer_norm, kernels.add_layer_norm
    if spec.kind == "wide_rms":
        return kernels.wide_rms_norm, kernels.add_wide_rms_norm
    return kernels.rms_norm, kernels.add_rms_norm
