"""A mixture of experts: the choice of experts, and the product with those that were chosen."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from pageant.kernels.base import NO_BIASES, ExpertBiases
from pageant.kernels.quantized import Weight
from pageant.kernels.reference.pointwise import clamped_swiglu, gelu_and_mul, silu_and_mul
from pageant.kernels.reference.products import linear, logits

__all__ = ["moe", "route", "route_by_sigmoid", "route_in_groups", "weigh_experts"]

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": silu_and_mul,
    "gelu": lambda gate_up: gelu_and_mul(gate_up, tanh=False),
    "gelu_tanh": lambda gate_up: gelu_and_mul(gate_up, tanh=True),
    "clamped_swiglu": clamped_swiglu,
    "relu2": lambda up: up.relu().square(),
}


def route(logits: Tensor, top_k: int, normalise: bool) -> tuple[Tensor, Tensor]:
    """See `Kernels.route`."""
    logits = logits.float()
    return _chosen(logits, logits.softmax(dim=-1), top_k, normalise)


def route_in_groups(
    logits: Tensor, top_k: int, normalise: bool, *, scale: float, groups: int, groups_kept: int
) -> tuple[Tensor, Tensor]:
    """See `Kernels.route_in_groups`."""
    logits = logits.float()
    choice = logits if groups == 1 else _of_best_groups(logits, groups, groups_kept, best=1)
    weights, experts = _chosen(choice, logits.softmax(dim=-1), top_k, normalise)
    return weights * scale, experts


def route_by_sigmoid(
    logits: Tensor,
    bias: Tensor,
    top_k: int,
    normalise: bool,
    *,
    scale: float = 1.0,
    groups: int = 1,
    groups_kept: int = 1,
) -> tuple[Tensor, Tensor]:
    """See `Kernels.route_by_sigmoid`."""
    scores = logits.float().sigmoid()
    choice = scores + bias
    if groups > 1:
        choice = _of_best_groups(choice, groups, groups_kept, best=2)
    weights, experts = _chosen(choice, scores, top_k, normalise)
    return weights * scale, experts


def _of_best_groups(choice: Tensor, groups: int, groups_kept: int, best: int) -> Tensor:
    """Return [T, E] with -inf for experts of all groups but those whose `best` largest sum to most."""
    of_groups = choice.view(len(choice), groups, choice.shape[1] // groups)
    ranked = of_groups.topk(best, dim=-1)[0].sum(-1).argsort(dim=-1, descending=True, stable=True)
    left_out = torch.ones_like(ranked, dtype=torch.bool).scatter_(1, ranked[:, :groups_kept], False)
    return of_groups.masked_fill(left_out[..., None], float("-inf")).flatten(1)


def _chosen(choice: Tensor, scores: Tensor, top_k: int, normalise: bool) -> tuple[Tensor, Tensor]:
    """Return the scores of those who are largest by `choice`, and their numbers, [T, K] of [T, E]."""
    experts = choice.argsort(dim=-1, descending=True, stable=True)[:, :top_k].contiguous()
    weights = scores.gather(-1, experts)
    if normalise:
        weights = weights / weights.sum(dim=-1, keepdim=True)
    return weights, experts


def moe(
    x: Tensor,
    gate_up: Weight,
    down: Weight,
    weights: Tensor,
    experts: Tensor,
    activation: str,
    *,
    biases: ExpertBiases = NO_BIASES,
    unrounded: bool = False,
) -> Tensor:
    """See `Kernels.moe`. Tokens are grouped by expert, so that each chosen expert is one product.

    Quantised experts are dequantised one at a time. A token's are added in the order of its choices.
    """
    act, top_k = _ACTIVATIONS[activation], experts.shape[1]
    order = experts.flatten().argsort(stable=True)  # [T * K]: places in `experts`, expert by expert
    is_here = experts.flatten() >= 0
    order = order[is_here[order]]
    counts = torch.bincount(experts.flatten()[is_here], minlength=gate_up.shape[0]).tolist()
    made = x.new_zeros(experts.numel(), x.shape[1], dtype=torch.float32 if unrounded else x.dtype)
    for expert, places in enumerate(torch.split_with_sizes(order, counts)):
        if len(places):
            acted = act(linear(x[places // top_k], gate_up[expert], _of(biases.gate_up, expert)))
            bias = _of(biases.down, expert)
            if unrounded:
                found = logits(acted, down[expert])
                made[places] = found if bias is None else found + bias
            else:
                made[places] = linear(acted, down[expert], bias)
    return weigh_experts(made.view(*experts.shape, x.shape[1]), weights)


def weigh_experts(made: Tensor, weights: Tensor) -> Tensor:
    """See `Kernels.weigh_experts`."""
    output = torch.zeros(made.shape[0], made.shape[2], dtype=torch.float32, device=made.device)
    for choice, weight in enumerate(weights.unbind(1)):
        output += made[:, choice] * weight[:, None]
    return output.to(made.dtype)


def _of(bias: Tensor | None, expert: int) -> Tensor | None:
    return None if bias is None else bias[expert]
