"""Norms against transformers' own and torch's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.models.gemma2.modeling_gemma2 import Gemma2RMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.olmo2.modeling_olmo2 import Olmo2RMSNorm

from pageant.kernels.base import Kernels

SHAPES = [(1, 8), (5, 33), (3, 4, 16)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_rms_norm_is_that_of_transformers(
    backend: Kernels, shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    x = (torch.randn(shape) * 3).to(dtype)
    theirs = LlamaRMSNorm(shape[-1], eps=1e-5)
    theirs.weight.data = torch.rand(shape[-1]).to(dtype)
    torch.testing.assert_close(backend.rms_norm(x, theirs.weight.data, 1e-5), theirs(x).detach())


def test_rms_norm_in_bfloat16_rounds_before_the_weight(backend: Kernels) -> None:
    """Compare up to a rare last bit of the root, which may move a rounding."""
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


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("norm", "added"), [(Gemma2RMSNorm, 1.0), (Olmo2RMSNorm, 0.0)])
def test_wide_rms_norm_rounds_after_the_weight_as_gemma_and_olmo_do(
    backend: Kernels, shape: tuple[int, ...], dtype: torch.dtype, norm: Any, added: float
) -> None:
    x, weight = (torch.randn(shape) * 3).to(dtype), torch.rand(shape[-1]).to(dtype)
    theirs = norm(shape[-1], eps=1e-5)
    theirs.weight.data = weight
    ours = backend.wide_rms_norm(x, weight.float() + added, 1e-5)
    assert ours.dtype == dtype
    torch.testing.assert_close(ours, theirs(x).detach())


def test_wide_rms_norm_in_bfloat16_rounds_once(backend: Kernels) -> None:
    """Compare up to a rare last bit of the root, which may move a rounding."""
    x, weight = torch.randn(50, 64).bfloat16(), torch.rand(64) + 1
    exact = x.double() * (x.double().square().mean(-1, keepdim=True) + 1e-6).rsqrt() * weight.double()
    assert (backend.wide_rms_norm(x, weight, 1e-6) == exact.bfloat16()).float().mean() > 0.99


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_layer_norm_is_its_formula_rounded_once(
    backend: Kernels, shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    x, weight, bias = ((torch.randn(size) * 2).to(dtype) for size in (shape, shape[-1:], shape[-1:]))
    exact = x.double()
    centred = exact - exact.mean(-1, keepdim=True)
    normed = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    expected = (normed * weight.double() + bias.double()).to(dtype)
    ours = backend.layer_norm(x, weight, bias, 1e-5)
    assert ours.dtype == dtype
    torch.testing.assert_close(ours, expected)


def test_a_fused_addition_is_the_norm_of_the_sum_and_the_sum(backend: Kernels) -> None:
    x, residual = torch.randn(2, 3, 10).bfloat16()
    weight, bias = torch.rand(2, 10).bfloat16()
    before, total = (x.clone(), residual.clone()), x + residual
    pairs: list[tuple[Callable[..., tuple[Tensor, Tensor]], Callable[..., Tensor], tuple[Tensor, ...]]] = [
        (backend.add_wide_rms_norm, backend.wide_rms_norm, (weight.float(),)),
        (backend.add_layer_norm, backend.layer_norm, (weight, bias)),
    ]
    for fused, alone, weights in pairs:
        normed, summed = fused(x, residual, *weights, 1e-5)
        torch.testing.assert_close(summed, total)
        torch.testing.assert_close(normed, alone(total, *weights, 1e-5))
        assert torch.equal(x, before[0]) and torch.equal(residual, before[1])
