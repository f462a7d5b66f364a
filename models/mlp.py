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
    assert layer.mlp is not None, "the layer has one"
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
        if spec.gate_scale is not None:
            self._activated = partial(_gated, self._first, kernels, spec.activation, spec.gate_scale)
        elif spec.gated:
            self._activated = partial(self._first.gated, activation=spec.activation)
        elif spec.activation == "relu2":
            self._activated = lambda x: self._first(x).relu_().square_()
        else:
            assert spec.activation != "silu", "no family has a SiLU without a gate"
            tanh = spec.activation == "gelu_tanh"
            self._activated = lambda x: kernels.gelu(self._first(x), tanh=tanh)

    def __call__(self, x: Tensor) -> Tensor:
        """Return [T, hidden_size] for x [T, hidden_size]."""
        return self._down(self._activated(x))


def _gated(first: Projection, kernels: Kernels, activation: str, scale: float, x: Tensor) -> Tensor:
    """Return act(scale * gate) * up, [T, size], for x [T, hidden_size]."""
    gate_up = first(x)
    gate_up[:, : gate_up.shape[1] // 2] *= scale
    return kernels.act_and_mul(gate_up, activation)


class MixtureOfExperts:
    """Experts of each token, weighted, and where there is one the expert that all share."""

    def __init__(self, spec: MoESpec, weights: Weights, kernels: Kernels, joint: Joint | None = None) -> None:
        self._spec, self._joint = spec, joint
        self._kernels = kernels
        self._router, self._router_bias = weights["router.weight"], weights.get("router.bias")
        self._correction = weights.get("router_correction.weight")
        self._segments = _segments_of_experts(weights, joint)
        self.projections: dict[str, Projection] = {}
        self._shared: MLP | None = None
        if spec.shared_size is not None:
            assert spec.activation != "clamped_swiglu", "no family has one in a shared expert"
            shared = MLPSpec(size=spec.shared_size, activation=spec.activation, gated=spec.gated)
            self._shared = MLP(shared, weights, kernels, prefix="shared_", joint=joint)
            self._switch = weights["shared_switch.weight"] if spec.shared_switch else None
            self.projections = self._shared.projections

    def __call__(self, x: Tensor) -> Tensor:
        """Return [T, hidden_size] for x [T, hidden_size]."""
        spec, kernels, joint = self._spec, self._kernels, self._joint
        weights, experts = self._choose(x)
        if joint is None or (joint.size == 1 and joint.experts != "cut"):
            stacks, biases = self._segments[0]
            output = kernels.moe(x, *stacks, weights, experts, spec.activation, biases=biases)
        elif joint.experts == "exact":
            output = self._sum_of_all(joint, x, weights, self._here(experts))
        else:
            experts = self._here(experts)
            parts = [
                kernels.moe(x, *stacks, weights, experts, spec.activation, biases=biases, unrounded=True)
                for stacks, biases in self._segments
            ]
            output = joint.sum(parts, x.dtype)
        if self._shared is not None:
            shared = self._shared(x)
            output += (
                shared if self._switch is None else sigmoid_alike(kernels.linear(x, self._switch)) * shared
            )
        return output

    def _choose(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the weights and the numbers of each token's experts, [T, top_k] each."""
        spec, kernels = self._spec, self._kernels
        if self._correction is None:
            logits = (
                kernels.logits(x, self._router)
                if spec.exact_router
                else kernels.linear(x, self._router, self._router_bias)
            )
            if spec.groups == 1 and spec.scale == 1:
                return kernels.route(logits, spec.top_k, spec.normalise)
            return kernels.route_in_groups(
                logits,
                spec.top_k,
                spec.normalise,
                scale=spec.scale,
                groups=spec.groups,
                groups_kept=spec.groups_kept,
            )
        return kernels.route_by_sigmoid(
            kernels.logits(x, self._router),
            self._correction,
            spec.top_k,
            spec.normalise,
            scale=spec.scale,
            groups=spec.groups,
            groups_kept=spec.groups_kept,
        )

    def _here(self, experts: Tensor) -> Tensor:
        """Return the numbers of experts, int64 [T, K], among those whose weights are here; -1 for others."""
        first, count = self._spec.first_here, self._spec.experts_here
        if count is None:
            return experts
        here = experts - first
        return here.masked_fill_((here < 0) | (here >= count), -1)

    def _sum_of_all(self, joint: Joint, x: Tensor, weights: Tensor, experts: Tensor) -> Tensor:
        """Return the weighted sum of what all experts make of x, [T, N], in the order in which one rank takes it.

        weights, experts: [T, K]. What one rank's experts make comes to all ranks first, [T, K, N], and is exact: others
        add zeros to it.
        """
        tokens, top_k = experts.shape
        pairs = x.repeat_interleave(top_k, dim=0)
        alone = torch.ones(tokens * top_k, 1, dtype=torch.float32, device=x.device)
        stacks, biases = self._segments[0]
        made = self._kernels.moe(
            pairs, *stacks, alone, experts.view(-1, 1), self._spec.activation, biases=biases
        )
        everyone = joint.sum([made.float()], x.dtype)
        return self._kernels.weigh_experts(everyone.view(tokens, top_k, x.shape[1]), weights)


def sigmoid_alike(x: Tensor) -> Tensor:
    """Return the sigmoids of x, of its shape [...] and dtype, whose bits do not depend on where a number stands.

    torch computes the last few of many numbers by other instructions than the rest, and their float32 may differ in the
    last bit. In float64, rounded once, they are the same.
    """
    return torch.sigmoid(x.double()).to(x.dtype)


def _segments_of_experts(weights: Weights, joint: Joint | None) -> list[tuple[tuple[Any, Any], ExpertBiases]]:
    """Return the experts' stacked weights into and out of their inner layers, and biases, for each segment of sums.

    The biases of sums are added once, by the first segment of all ranks. Whole experts have theirs with them.
    """
    are_cut = joint is not None and joint.experts == "cut"
    segments = joint.segments if joint is not None and are_cut else 1
    first_name = "expert_gate_up" if "expert_up.weight" not in weights else "expert_up"
    names = (f"{first_name}.weight", "expert_down.weight", "expert_gate_up.bias")
    into, out, bias = (segment_names(name, segments) for name in names)
    adds = joint is None or not are_cut or joint.rank == 0
    first = weights.get("expert_down.bias") if adds else None
    return [
        (
            (weights[into[number]], weights[out[number]]),
            ExpertBiases(weights.get(bias[number]), None if number else first),
        )
        for number in range(segments)
    ]
