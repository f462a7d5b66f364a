"""A linear map of a layer, with what the adapters of a step's tokens add to it."""

from __future__ import annotations

import torch
from torch import Tensor

from pageant.kernels.base import Kernels
from pageant.kernels.low_rank import Addition
from pageant.models.joint import Joint
from pageant.models.sharding import segment_names
from pageant.models.weights import Weights

__all__ = ["JointProjection", "Projection", "output_projection"]


class Projection:
    """x @ weight.T + bias, and the additions of the step at hand. Without any, they cost a test.

    Each adapter is applied to its own tokens alone: a token's numbers do not depend on the others of its step as
    long as the kernels' products do not.

    The weight's inputs may lie in another order than x's, if the checkpoint's scales are of inputs that are apart
    (`ready`): then x's columns are gathered first. Adapters take x as it comes.
    """

    def __init__(self, module: str, weights: Weights, kernels: Kernels) -> None:
        self.additions: list[Addition] = []
        self._weight, self._bias = weights[f"{module}.weight"], weights.get(f"{module}.bias")
        self._order = weights.get(f"{module}.order")
        self._linear, self._add_low_rank = kernels.linear, kernels.add_low_rank
        self._gated_linear, self._act_and_mul = kernels.gated_linear, kernels.act_and_mul
        self._gather = kernels.gather_columns

    def gated(self, x: Tensor, activation: str) -> Tensor:
        """Return [T, out / 2] of x's dtype: the activation of the first half of a call's result, times the second."""
        if self.additions:
            return self._act_and_mul(self(x), activation)
        return self._gated_linear(self._sorted(x), self._weight, self._bias, activation)

    def __call__(self, x: Tensor) -> Tensor:
        """Return [T, out] for x [T, in]."""
        y = self._linear(self._sorted(x), self._weight, self._bias)
        if self.additions:
            self._add_low_rank(x, y, self.additions)
        return y

    def _sorted(self, x: Tensor) -> Tensor:
        """Return x with its columns in the order of the weight's inputs."""
        return x if self._order is None else self._gather(x, self._order)


class JointProjection(Projection):
    """A projection whose inputs are shared out over ranks: each adds a part, and all have the sum.

    The bias is whole on each rank, and added once.
    """

    def __init__(self, module: str, weights: Weights, kernels: Kernels, joint: Joint) -> None:
        self._segments = [weights[name] for name in segment_names(f"{module}.weight", joint.segments)]
        super().__init__(module, {**weights, f"{module}.weight": self._segments[0]}, kernels)
        self._joint, self._unrounded = joint, kernels.logits

    def __call__(self, x: Tensor) -> Tensor:
        """Return [T, out] for this rank's part of the inputs, x [T, in of this rank]."""
        inputs = self._sorted(x)
        width = inputs.shape[1] // len(self._segments)
        parts = [
            self._unrounded(inputs[:, number * width : (number + 1) * width], weight)
            for number, weight in enumerate(self._segments)
        ]
        if self.additions:
            added = torch.zeros(parts[0].shape, dtype=x.dtype, device=x.device)
            self._add_low_rank(x, added, self.additions)
            parts[0] = parts[0] + added
        return self._joint.sum(parts, x.dtype, self._bias)


def output_projection(module: str, weights: Weights, kernels: Kernels, joint: Joint | None) -> Projection:
    """Return a projection back to the width of the stream. With `joint`, its inputs are shared out over ranks."""
    return (
        Projection(module, weights, kernels)
        if joint is None
        else JointProjection(module, weights, kernels, joint)
    )
