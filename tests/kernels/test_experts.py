"""Routing and the product with experts, against loops over tokens."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from pageant.kernels.base import NO_BIASES, ExpertBiases, Kernels


def clamped_swiglu(gate: Tensor, up: Tensor) -> Tensor:
    gate, up = gate.clamp(max=7), up.clamp(-7, 7)
    return gate * torch.sigmoid(1.702 * gate) * (up + 1)


GATINGS = {
    "silu": lambda gate, up: F.silu(gate) * up,
    "gelu": lambda gate, up: F.gelu(gate) * up,
    "gelu_tanh": lambda gate, up: F.gelu(gate, approximate="tanh") * up,
    "clamped_swiglu": clamped_swiglu,
    "relu2": lambda before: before.relu().square(),
}


@pytest.mark.parametrize("normalise", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_token_goes_to_its_most_probable_experts(
    backend: Kernels, normalise: bool, dtype: torch.dtype
) -> None:
    logits = torch.randn(9, 12).to(dtype)
    weights, experts = backend.route(logits, 3, normalise)
    assert weights.dtype == torch.float32 and experts.dtype == torch.int64
    for token, row in enumerate(logits.double().softmax(-1).tolist()):
        best = sorted(range(12), key=lambda expert: -row[expert])[:3]
        total = sum(row[expert] for expert in best) if normalise else 1.0
        assert sorted(row[expert] for expert in experts[token].tolist()) == sorted(row[e] for e in best)
        expected = torch.tensor([row[expert] / total for expert in best])
        torch.testing.assert_close(weights[token], expected.float())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_experts_made_apart_has_the_bits_of_what_they_make_together(
    backend: Kernels, dtype: torch.dtype
) -> None:
    """One expert to a token, weighed with nothing, is what it makes."""
    x = torch.randn(7, 64).to(dtype)
    gate_up, down = torch.randn(5, 64, 64).to(dtype) / 8, torch.randn(5, 64, 32).to(dtype) / 8
    weights, experts = backend.route(torch.randn(7, 5), 3, True)
    together = backend.moe(x, gate_up, down, weights, experts, "silu")
    ones = torch.ones(21, 1)
    made = backend.moe(x.repeat_interleave(3, 0), gate_up, down, ones, experts.view(-1, 1), "silu")
    assert torch.equal(backend.weigh_experts(made.view(7, 3, 64), weights), together)


def test_equal_logits_are_chosen_by_the_lowest_id(backend: Kernels) -> None:
    logits = torch.tensor([[0.0, 2.0, 1.0, 2.0, 1.0, 1.0, 2.0], [3.0] * 7, [float("-inf")] * 6 + [0.0]])
    assert backend.route(logits, 4, False)[1].tolist() == [[1, 3, 6, 2], [0, 1, 2, 3], [6, 0, 1, 2]]


def test_logits_are_ranked_where_their_shares_are_all_zero(backend: Kernels) -> None:
    logits = torch.tensor([[-300.0, 0.0, -120.0, -200.0, -110.0]])
    weights, experts = backend.route(logits, 4, False)
    assert experts.tolist() == [[1, 4, 2, 3]]
    assert weights.tolist() == [[1.0, 0.0, 0.0, 0.0]]


def test_what_is_not_a_number_goes_to_experts_that_there_are(backend: Kernels) -> None:
    logits = torch.randn(3, 6)
    logits[1] = float("nan")
    weights, experts = backend.route(logits, 2, True)
    assert ((experts >= 0) & (experts < 6)).all()
    assert weights.isnan().any(1).tolist() == [False, True, False]


@pytest.mark.parametrize(("groups", "kept"), [(1, 1), (4, 2), (2, 1), (6, 6)])
@pytest.mark.parametrize("normalise", [False, True])
def test_sigmoids_choose_by_their_sum_with_a_bias_and_weigh_without_it(
    backend: Kernels, groups: int, kept: int, normalise: bool
) -> None:
    logits, bias = torch.randn(9, 12), torch.randn(12) * 0.3
    weights, experts = backend.route_by_sigmoid(
        logits, bias, 2, normalise, scale=2.5, groups=groups, groups_kept=kept
    )
    assert weights.dtype == torch.float32 and experts.dtype == torch.int64
    size = 12 // groups
    for token, row in enumerate(logits.double().sigmoid().tolist()):
        choice = [score + correction for score, correction in zip(row, bias.tolist(), strict=True)]
        of_groups = [sum(sorted(choice[g * size : (g + 1) * size])[-2:]) for g in range(groups)]
        left = sorted(range(groups), key=lambda g: -of_groups[g])[:kept]
        best = sorted((e for e in range(12) if e // size in left), key=lambda e: -choice[e])[:2]
        assert experts[token].tolist() == best
        total = sum(row[e] for e in best) if normalise else 1.0
        expected = torch.tensor([2.5 * row[e] / total for e in best])
        torch.testing.assert_close(weights[token], expected)


def test_equal_sums_are_chosen_by_the_lowest_id(backend: Kernels) -> None:
    logits = torch.tensor([[1.0, 0.0, 1.0, 1.0, -1.0]])
    assert backend.route_by_sigmoid(logits, torch.zeros(5), 3, True)[1].tolist() == [[0, 2, 3]]


def naive(
    x: Tensor,
    gate_up: Tensor,
    down: Tensor,
    weights: Tensor,
    experts: Tensor,
    activation: str,
    biases: ExpertBiases = NO_BIASES,
) -> Tensor:
    output = torch.zeros(x.shape, dtype=torch.float64)
    for token in range(x.shape[0]):
        for weight, expert in zip(weights[token].double(), experts[token].tolist(), strict=True):
            inner = gate_up[expert].double() @ x[token].double()
            if biases.gate_up is not None:
                inner = inner + biases.gate_up[expert]
            parts = (inner,) if activation == "relu2" else inner.chunk(2)
            made = down[expert].double() @ GATINGS[activation](*parts)
            output[token] += weight * (made if biases.down is None else made + biases.down[expert])
    return output


def make(tokens: int, top_k: int, num_experts: int = 5, *, activation: str = "silu") -> tuple[Tensor, ...]:
    """x, gate_up, down, weights, experts: hidden size 6, inner size 4."""
    experts = torch.stack([torch.randperm(num_experts)[:top_k] for _ in range(tokens)] or [])
    shapes = ((tokens, 6), (num_experts, 4 if activation == "relu2" else 8, 6), (num_experts, 6, 4))
    return (*(torch.randn(shape) for shape in shapes), torch.rand(tokens, top_k), experts)


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("activation", GATINGS)
@pytest.mark.parametrize(("tokens", "top_k"), [(1, 1), (1, 3), (40, 2), (7, 5)])
def test_each_token_gets_the_weighted_sum_of_its_experts(
    backend: Kernels, tokens: int, top_k: int, activation: str, biased: bool
) -> None:
    x, *rest = make(tokens, top_k, activation=activation)
    biases = ExpertBiases(torch.randn(rest[0].shape[:2]) * 8, torch.randn(5, 6)) if biased else NO_BIASES
    before = x.clone()
    output = backend.moe(x, *rest, activation, biases=biases)
    expected = naive(x, *rest, activation, biases)
    near = 1e-4 if biased else 1e-5  # biases make large numbers
    torch.testing.assert_close(output.double(), expected, atol=near, rtol=near)
    part = backend.moe(x, *rest, activation, biases=biases, unrounded=True)
    torch.testing.assert_close(part.double(), expected, atol=near, rtol=near)
    assert torch.equal(x, before)


def test_an_expert_that_many_or_none_choose_changes_nothing(backend: Kernels) -> None:
    x, gate_up, down, weights, _ = make(12, 1)
    experts = torch.tensor([[3]] * 11 + [[0]])
    output = backend.moe(x, gate_up, down, weights, experts, "silu")
    expected = naive(x, gate_up, down, weights, experts, "silu")
    torch.testing.assert_close(output.double(), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("activation", ["silu", "clamped_swiglu", "relu2"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_experts_in_16_bits_err_by_their_own_rounding_only(
    backend: Kernels, dtype: torch.dtype, activation: str
) -> None:
    x, gate_up, down, weights, experts = make(16, 4, activation=activation)
    x, gate_up, down = x.to(dtype), gate_up.to(dtype), down.to(dtype)
    biases = ExpertBiases(torch.randn(gate_up.shape[:2]).to(dtype), torch.randn(5, 6).to(dtype))
    output = backend.moe(x, gate_up, down, weights, experts, activation, biases=biases)
    assert output.dtype == dtype
    expected = naive(x, gate_up, down, weights, experts, activation, biases)
    error = (output - expected).square().mean().sqrt()
    assert error < 0.01 * expected.square().mean().sqrt()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_parts_of_experts_that_are_shared_out_add_up_to_the_whole(
    backend: Kernels, dtype: torch.dtype
) -> None:
    x, gate_up, down, weights, experts = make(16, 3)
    x, gate_up, down = x.to(dtype), gate_up.to(dtype), down.to(dtype)
    parts = []
    for first, last in ((0, 2), (2, 5)):
        here = torch.where((experts >= first) & (experts < last), experts - first, -1)
        part = backend.moe(x, gate_up[first:last], down[first:last], weights, here, "silu", unrounded=True)
        assert part.dtype == torch.float32
        parts.append(part)
    expected = naive(x, gate_up, down, weights, experts, "silu")
    error = (parts[0] + parts[1] - expected).square().mean().sqrt()
    assert error < (1e-6 if dtype == torch.float32 else 0.01) * expected.square().mean().sqrt()


def test_a_token_without_an_expert_here_adds_nothing(backend: Kernels) -> None:
    x, gate_up, down, weights, experts = make(3, 2)
    part = backend.moe(x, gate_up, down, weights, torch.full_like(experts, -1), "silu", unrounded=True)
    assert torch.equal(part, torch.zeros(3, 6))
