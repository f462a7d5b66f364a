"""Rotary embedding and activation against their formulas."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from pageant.kernels.base import HeadNorms, Kernels


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


def test_rope_leaves_what_lies_past_the_tables_width(backend: Kernels) -> None:
    query, key = torch.randn(5, 3, 12), torch.randn(5, 1, 12)
    positions, cache = torch.tensor([0, 1, 9, 63, 2]), table(64, 4)
    turned = query[..., :4].clone(), key[..., :4].clone()
    kept = query[..., 4:].clone(), key[..., 4:].clone()
    backend.rope(*turned, cache, positions)
    backend.rope(query, key, cache, positions)
    for whole, first, rest in zip((query, key), turned, kept, strict=True):
        torch.testing.assert_close(whole[..., :4], first)
        assert torch.equal(whole[..., 4:], rest)


@pytest.mark.parametrize("wide", [None, False, True])
@pytest.mark.parametrize("rotated", [False, True])
def test_heads_are_normalised_then_rotated_then_written(
    backend: Kernels, wide: bool | None, rotated: bool
) -> None:
    query, key, value = torch.randn(3, 4, 8), torch.randn(3, 2, 8), torch.randn(3, 2, 8)
    positions, slots, cache = torch.tensor([0, 3, 40]), torch.tensor([17, 2, 3]), table(64, 6)
    norms, expected = None, [query.clone(), key.clone()]
    if wide is not None:
        weights = torch.rand(2, 8)
        norms = HeadNorms(query=weights[0], key=weights[1], eps=1e-5, wide=wide)
        expected = [
            x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight
            for x, weight in zip(expected, weights, strict=True)
        ]
    if rotated:
        backend.rope(expected[0], expected[1], cache, positions)
    keys, values = torch.zeros(5, 2, 4, 8), torch.zeros(5, 2, 4, 8)
    backend.rope_and_write_kv(
        query, key, value.clone(), cache if rotated else None, positions, keys, values, slots, norms
    )
    torch.testing.assert_close(query, expected[0])
    torch.testing.assert_close(keys[slots // 4, :, slots % 4], expected[1])
    assert torch.equal(values[slots // 4, :, slots % 4], value)
    assert int((keys != 0).any(-1).sum()) == 6 and int((values != 0).any(-1).sum()) == 6


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


def exact_gelu(x: Tensor, tanh: bool) -> Tensor:
    if tanh:
        return x / 2 * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3)))
    return x / 2 * (1 + torch.erf(x / 2**0.5))


@pytest.mark.parametrize("tanh", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_gelu_is_its_formula_rounded_once(backend: Kernels, tanh: bool, dtype: torch.dtype) -> None:
    x = (torch.randn(7, 33) * 3).to(dtype)
    before = x.clone()
    torch.testing.assert_close(backend.gelu(x, tanh), exact_gelu(x.double(), tanh).to(dtype))
    assert torch.equal(x, before)


@pytest.mark.parametrize("tanh", [False, True])
def test_gelu_and_mul_gates_the_second_half_by_the_first(backend: Kernels, tanh: bool) -> None:
    gate_up = torch.randn(3, 14)
    before = gate_up.clone()
    expected = exact_gelu(before[:, :7], tanh) * before[:, 7:]
    torch.testing.assert_close(backend.gelu_and_mul(gate_up, tanh), expected)
    assert torch.equal(gate_up, before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_clamped_swiglu_is_its_formula_rounded_once(backend: Kernels, dtype: torch.dtype) -> None:
    gate_up = (torch.randn(5, 34) * 8).to(dtype)
    gate_up[0, :4] = torch.tensor([float("nan"), float("inf"), -100.0, 0.0])
    gate_up[1, 17:20] = torch.tensor([float("nan"), float("-inf"), float("inf")])
    before = gate_up.clone()
    gate, up = gate_up[:, :17].double().clamp(max=7), gate_up[:, 17:].double().clamp(-7, 7)
    expected = gate * torch.sigmoid(1.702 * gate) * (up + 1)
    for made in (backend.clamped_swiglu(gate_up), backend.act_and_mul(gate_up, "clamped_swiglu")):
        torch.testing.assert_close(made, expected.to(dtype), equal_nan=True)
    torch.testing.assert_close(gate_up, before, rtol=0, atol=0, equal_nan=True)
