"""A linear map of a layer, with what the adapters of a step's tokens add to it."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from pageant.kernels.base import Kernels
from pageant.models.weights import Weights

__all__ = ["Addition", "LowRank", "Projection"]


class LowRank(NamedTuple):
    """An adapter's two matrices, in the decoder's dtype. All that is added to one fused weight is in one pair."""

    down: Tensor
    """[r, in], the rows of each of its parts after one another."""
    up: Tensor
    """[out, r], scaled; each part has its own rows and columns, and the others are zeros."""

    def to(self, device: torch.device, dtype: torch.dtype) -> LowRank:
        """The same there, in that dtype."""
        return LowRank(self.down.to(device, dtype), self.up.to(device, dtype))


class Addition(NamedTuple):
    """What is added for some of a step's tokens."""

    tokens: Tensor | None
    """int64 [n], each once; None is all of them."""
    low_rank: LowRank


class Projection:
    """x @ weight.T + bias, and the additions of the step at hand. Without any, they cost a test.

    Each adapter is applied to its own tokens alone: a token's numbers do not depend on the others of its step as
    long as the kernels' `linear` does not.
    """

    def __init__(self, module: str, weights: Weights, kernels: Kernels) -> None:
        self.additions: list[Addition] = []
        self._weight, self._bias = weights[f"{module}.weight"], weights.get(f"{module}.bias")
        self._linear = kernels.linear

    @property
    def num_outputs(self) -> int:
        """Rows of the weight."""
        rows: int = self._weight.shape[0]
        return rows

    def __call__(self, x: Tensor) -> Tensor:
        """Return [T, out] for x [T, in]."""
        y = self._linear(x, self._weight, self._bias)
        if self.additions:
            self._add(x, y)
        return y

    def _add(self, x: Tensor, y: Tensor) -> None:
        for tokens, (down, up) in self.additions:
            if tokens is None:
                y += self._linear(self._linear(x, down), up)
            else:
                y.index_add_(0, tokens, self._linear(self._linear(x[tokens], down), up))
