"""Norms, rotary embedding and activation against their formulas."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from transformers.models.llama.modeling_llama import LlamaRMSNorm, apply_rotary_pos_emb

from pageant.kernels.base import Kernels

SHAPES = [(1, 8), (5, 33), (3, 4, 16)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rms_norm_is_that_of_transformers(
    backend: Kernels, shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    x = (torch.randn(shape) * 3).to(dtype)
    theirs = LlamaRMSNorm(shape[-1], eps=1e-5)
    theirs.weight.data = torch.rand(shape[-1]).to(dtype)
    torch.testing.assert_close(backend.rms_norm(x, theirs.weight.data, 1e-5), theirs(x).detach())


def test_rms_norm_in_bfloat16_rounds_before_the_weight(backend: Kernels) -> None:
    """Up to a rare last bit of the root, which may move a rounding."""
    x, weight = torch.randn(50, 64).bfloat16(), torch.rand(64).bfloat16()
    normed = x.float() * (x.float().square().mean(-1, keepdim=True) + 1e-6).rsqrt()
    expected = (normed.bfloat16().float() * weight.float()).bfloat16()
    assert (backend.rms_norm(x, weight, 1e-6) == expected).float().mean() > 0.99


def test_rms_norm_of_a_view_leaves_the_view_alone(backend: Kernels) -> None:
    fused = torch.randn(4, 24)
    before = fused.clone()
    normed = backend.rms_norm(fused[:, 8:].view(4, 2, 8), torch.ones(8), 1e-6)
    assert normed.shape == (4, 2, 8) and torch.equal(fused, before)


def test_add_rms_norm_returns_the_norm_of_the_sum_and_the_sum(backend: Kernels) -> None:
    x, residual, weight = torch.randn(3, 10), torch.randn(3, 10), torch.rand(10)
    before = x.clone(), residual.clone()
    normed, total = backend.add_rms_norm(x, residual, weight, 1e-6)
    assert torch.equal(x, before[0]) and torch.equal(residual, before[1])
    torch.testing.assert_close(total, x + residual)
    torch.testing.assert_close(normed, backend.rms_norm(x + residual, weight, 1e-6))


def table(num_positions: int, head_dim: int) -> Tensor:
    frequencies = 1 / 10000 ** (torch.arange(0, head_dim, 2) / head_dim)
    angles = torch.outer(torch.arange(num_positions).float(), frequencies)
    return torch.cat((angles.cos(), angles.sin()), dim=-1)


@pytest.mark.parametrize("heads", [(1, 1), (6, 3)])
def test_rope_turns_heads_in_place_as_transformers_does(backend: Kernels, heads: tuple[int, int]) -> None:
    positions, cache = torch.tensor([0, 3, 3, 40]), table(64, 8)
    fused = torch.randn(4, sum(heads) * 8)
    query = fused[:, : heads[0] * 8].view(4, heads[0], 8)
    key = fused[:, heads[0] * 8 :].view(4, heads[1], 8)
    cos, sin = (half[positions].repeat(1, 2) for half in cache.chunk(2, dim=-1))
    expected = apply_rotary_pos_emb(query.clone(), key.clone(), cos, sin)
    backend.rope(query, key, cache, positions)
    torch.testing.assert_close(query, expected[0])
    torch.testing.assert_close(key, expected[1])


def test_rope_in_bfloat16_rounds_once(backend: Kernels) -> None:
    query, key = torch.randn(5, 2, 8).bfloat16(), torch.randn(5, 1, 8).bfloat16()
    exact_query, exact_key = query.float(), key.float()
    positions, cache = torch.arange(5) * 7, table(64, 8)
    backend.rope(exact_query, exact_key, cache, positions)
    backend.rope(query, key, cache, positions)
    assert torch.equal(query, exact_query.bfloat16()) and torch.equal(key, exact_key.bfloat16())


def test_silu_and_mul_gates_the_second_half_by_the_first(backend: Kernels) -> None:
    gate_up = torch.randn(3, 14)
    before = gate_up.clone()
    gate, up = before[:, :7], before[:, 7:]
    torch.testing.assert_close(backend.silu_and_mul(gate_up), gate * torch.sigmoid(gate) * up)
    assert torch.equal(gate_up, before)


@pytest.mark.parametrize("biased", [False, True])
def test_linear_is_a_product_with_the_transposed_weight(backend: Kernels, biased: bool) -> None:
    x, weight = torch.randn(3, 5), torch.randn(4, 5)
    bias = torch.randn(4) if biased else None
    expected = x @ weight.T + (bias if bias is not None else 0)
    torch.testing.assert_close(backend.linear(x, weight, bias), expected)
