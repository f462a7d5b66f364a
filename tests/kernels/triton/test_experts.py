"""Routing and the mixture of experts beside the reference."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from pageant.kernels.base import NO_BIASES, ExpertBiases, Kernels

Numbers = Callable[..., torch.Tensor]


@pytest.mark.parametrize("normalise", [False, True])
@pytest.mark.parametrize(("tokens", "num_experts", "top_k"), [(0, 4, 2), (7, 5, 3), (3, 1, 1), (4, 40, 8)])
def test_route(
    triton_kernels: Kernels,
    reference: Kernels,
    numbers: Numbers,
    dtype: torch.dtype,
    tokens: int,
    num_experts: int,
    top_k: int,
    normalise: bool,
) -> None:
    logits = numbers(tokens, num_experts, dtype=dtype, seed=3, spare=2)
    logits += (
        torch.arange(num_experts, device=logits.device) * 0.01
    )  # no ties: those may be broken either way
    weights, experts = triton_kernels.route(logits, top_k, normalise)
    expected_weights, expected_experts = reference.route(logits, top_k, normalise)
    torch.testing.assert_close(weights, expected_weights, atol=1e-6, rtol=1e-5)
    assert torch.equal(experts, expected_experts)


def test_logits_are_ranked_where_shares_underflow_and_among_nan(
    triton_kernels: Kernels, reference: Kernels, device: torch.device
) -> None:
    none, minus = float("nan"), float("-inf")
    logits = torch.tensor(
        [
            [-300.0, 0.0, -120.0, -200.0, -110.0],
            [minus, minus, 4.0, minus, minus],
            [1.0, none, 3.0, 2.0, none],
            [none] * 5,
        ]
    )
    weights, experts = triton_kernels.route(logits.to(device), 4, False)
    expected_weights, expected_experts = reference.route(logits, 4, False)
    assert torch.equal(experts.cpu(), expected_experts)
    torch.testing.assert_close(weights.cpu(), expected_weights, equal_nan=True)


@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh", "clamped_swiglu"])
@pytest.mark.parametrize(
    ("tokens", "num_experts", "top_k", "hidden", "inner"),
    [(0, 4, 2, 16, 16), (1, 4, 2, 40, 24), (25, 3, 2, 33, 20), (6, 40, 1, 16, 16)],
)
def test_moe(
    triton_kernels: Kernels,
    reference: Kernels,
    numbers: Numbers,
    assert_near: Callable[..., None],
    dtype: torch.dtype,
    tokens: int,
    num_experts: int,
    top_k: int,
    hidden: int,
    inner: int,
    activation: str,
) -> None:
    x = numbers(tokens, hidden, dtype=dtype, seed=1, spare=3)
    gate_up = numbers(num_experts, 2 * inner, hidden, dtype=dtype, seed=2) * 0.3
    down = numbers(num_experts, hidden, inner, dtype=dtype, seed=3) * 0.3
    weights, experts = reference.route(numbers(tokens, num_experts, dtype=dtype, seed=4), top_k, True)
    biases = NO_BIASES
    if activation == "clamped_swiglu":
        sizes = (2 * inner, hidden)
        biases = ExpertBiases(*(numbers(num_experts, size, dtype=dtype, seed=5) * 4 for size in sizes))
    found = triton_kernels.moe(x, gate_up, down, weights, experts, activation, biases=biases)
    assert_near(found, reference.moe(x, gate_up, down, weights, experts, activation, biases=biases), 8)


def test_places_are_put_in_the_order_of_their_experts_however_many(
    triton_kernels: Kernels, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pageant.kernels.triton import experts as module

    experts = torch.randint(7, (300,), generator=torch.Generator().manual_seed(0)).to(device)
    counted = module._order(experts, 9)
    monkeypatch.setattr(module, "_COUNTED_MAX", 0)
    for ours, theirs in zip(counted, module._order(experts, 9), strict=True):
        assert torch.equal(ours, theirs)
