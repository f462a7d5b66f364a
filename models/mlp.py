"""Part of a layer after attention: an MLP, or a mixture of experts."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from pageant.kernels.base import ExpertBiases, Kernels
from pageant.models.joint import Joint
from pageant.models.projection import Projection, output_projection
from pageant.models.sharding import segment_names
from pageant.models.spec import LayerSpec, MLPSpec, MoESpec
from pageant.models.weights import Weights

__all__ = ["MLP", "MixtureOfExperts", "make_mlp"]


def make_mlp(
    layer: LayerSpec, weights: Weights, kernels: Kernels, joint: Joint | None = None
) -> MLP | MixtureOfExperts:
    """Return the one that the layer has; `joint` where its weights are shared out over ranks."""
    if isinstance(layer.mlp, MoESpec):
        return MixtureOfExperts(layer.mlp, weights, kernels, joint)
    return MLP(layer.mlp, weights, kernels, joint=joint)


class MLP:
    """Two projections with an activation between them, gated or not."""

    def __init__(
        self,
        spec: MLPSpec,
        weights: Weights,
        kernels: Kernels,
        prefix: str = "",
        joint: Joint | None = None,
    ) -> None:
        first, down = f"{prefix}gate_up" if spec.gated else f"{prefix}up", f"{prefix}down"
        self._first = Projection(first, weights, kernels)
        self._down = output_projection(down, weights, kernels, joint)
        self.projections = {first: self._first, down: self._down}
        self._activated: Callable[[Tensor], Tensor]
        if spec.gated:
            self._activated = partial(self._first.gated, activation=spec.activation)
        else:
            assert spec.activation != "silu", "no family has a SiLU without a gate"
            tanh = spec.activation == "gelu_tanh"
            self._activated = lambda x: kernels.gelu(self._first(x), tanh=tanh)

    def __call__(self, x: Tensor) -> Tensor:
        """Return [T, hidden_size] for x [T, hidden_size]."""
        return self._down(self._activated(x))


class MixtureOfExperts:
    """Each token's experts, weighted, and where there is one the expert that all share."""

    def __init__(self, spec: MoESpec, weights: Weights, kernels: Kernels, joint: Joint | None = None) -> None:
        self._spec, self._joint = spec, joint
        self._kernels = kernels
        self._router, self._router_bias = weights["router.weight"], weights.get("router.bias")
        self._segments = _segments_of_experts(weights, joint)
        self.projections: dict[str, Projection] = {}
        self._shared: MLP | None = None
        if spec.shared_size is not None:
            assert spec.activation != "clamped_swiglu", "no family has one in a shared expert"
            shared = MLPSpec(size=spec.shared_size, activation=spec.activation)
            self._shared = MLP(shared, weights, kernels, prefix="shared_", joint=joint)
            self._switch = weights["shared_switch.weight"]
            self.projections = self._shared.projections

    def __call__(self, x: Tensor) -> Tensor:
        """Return [T, hidden_size] for x [T, hidden_size]."""
        spec, kernels = self._spec, self._kernels
        logits = kernels.linear(x, self._router, self._router_bias)
        chosen = kernels.route(logits, spec.top_k, spec.normalise)
        if self._joint is None:
            stacks, biases = self._segments[0]
            output = kernels.moe(x, *stacks, *chosen, spec.activation, biases=biases)
        else:
            output = self._joint.sum(
                [
                    kernels.moe(x, *stacks, *chosen, spec.activation, biases=biases, unrounded=True)
                    for stacks, biases in self._segments
                ],
                x.dtype,
            )
        if self._shared is not None:
            output += torch.sigmoid(kernels.linear(x, self._switch)) * self._shared(x)
        return output


def _segments_of_experts(weights: Weights, joint: Joint | None) -> list[tuple[tuple[Any, Any], ExpertBiases]]:
    """Return the experts' stacked weights into and out of their inner layers, and biases, for each segment of sums.

    The biases of sums are added once, by the first segment of all ranks.
    """
    segments = 1 if joint is None else joint.segments
    names = ("expert_gate_up.weight", "expert_down.weight", "expert_gate_up.bias")
    into, out, bias = (segment_names(name, segments) for name in names)
    first = weights.get("expert_down.bias") if joint is None or joint.rank == 0 else None
    return [
        (
            (weights[into[number]], weights[out[number]]),
            ExpertBiases(weights.get(bias[number]), None if number else first),
        )
        for number in range(segments)
    ]
