"""Rounding by Hessians: the codes of the algorithm as it is defined, and smaller errors of outputs."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from pageant.models.quantizing.gptq import Hessian, round_by_hessian
from pageant.models.quantizing.rounding import choose_scales, dequantised, round_to_codes
from pageant.models.quantizing.schemes import SCHEMES, Scheme

INT4 = SCHEMES["int4"]
DAMPING = 0.01


def inputs_of(tokens: int, inputs: int, rank: int = 24) -> Tensor:
    """Inputs that depend on one another, some of them large."""
    generator = torch.Generator().manual_seed(inputs)
    mixed = torch.randn(tokens, rank, generator=generator) @ torch.randn(rank, inputs, generator=generator)
    x = mixed + 0.3 * torch.randn(tokens, inputs, generator=generator)
    return x * torch.linspace(0.2, 3.0, inputs)[torch.randperm(inputs, generator=generator)]


def hessian_of(x: Tensor) -> Hessian:
    hessian = Hessian(x.shape[1])
    hessian.add(x)
    return hessian


def by_definition(weight: Tensor, sums: Tensor, scales: Tensor, group: int, order: Tensor) -> Tensor:
    """Optimal brain quantisation in a fixed order, in float64: each rounded column leaves the inverse Hessian."""
    columns, inverse = weight.double().clone(), sums.double()
    inverse = torch.linalg.inv(inverse + DAMPING * inverse.diagonal().mean() * torch.eye(len(sums)).double())
    codes = torch.zeros(weight.shape, dtype=torch.int8)
    for i in order.tolist():
        scale = scales[:, i // group].double()
        code = (columns[:, i] / scale).round().clamp(-8, 7)
        codes[:, i] = code.to(torch.int8)
        error = (columns[:, i] - code * scale) / inverse[i, i]
        columns -= error[:, None] * inverse[i]
        inverse = inverse - torch.outer(inverse[:, i], inverse[i]) / inverse[i, i]
        inverse[i, i] = 1.0  # never looked at again
    return codes


@pytest.mark.parametrize("act_order", [True, False])
@pytest.mark.parametrize(("inputs", "group_size"), [(96, 32), (288, 32), (64, None)])
def test_codes_are_those_of_the_algorithm_as_it_is_defined(
    inputs: int, group_size: int | None, act_order: bool
) -> None:
    torch.manual_seed(0)
    x, weight = inputs_of(500, inputs), torch.randn(40, inputs)
    hessian = hessian_of(x)
    scheme = replace(INT4, group_size=group_size)
    codes, scales = round_by_hessian(weight, hessian, scheme, act_order=act_order, damping=DAMPING)
    importance = hessian.sums.diagonal()
    assert torch.equal(scales, choose_scales(weight, scheme, importance / 500))
    order = importance.argsort(descending=True, stable=True) if act_order else torch.arange(inputs)
    expected = by_definition(weight, hessian.sums, scales, group_size or inputs, order)
    # Errors of float32 decide where a column is all but between two codes.
    assert (codes == expected).float().mean() > 0.995
    assert codes.min() >= -8 and codes.max() <= 7


@pytest.mark.parametrize("scheme", [INT4, SCHEMES["w4a16"], SCHEMES["w8a8"]], ids=lambda scheme: scheme.name)
def test_outputs_change_less_than_by_the_nearest_codes(scheme: Scheme) -> None:
    torch.manual_seed(1)
    x, weight = inputs_of(1200, 128), torch.randn(48, 128)
    seen, others = x[:1000], x[1000:]
    nearest_scales = choose_scales(weight, scheme)
    nearest = dequantised(round_to_codes(weight, nearest_scales, scheme), nearest_scales)
    found = dequantised(*round_by_hessian(weight, hessian_of(seen), scheme, act_order=True, damping=0.01))
    errors = [float(((kept - weight) @ others.T).square().mean()) for kept in (nearest, found)]
    assert errors[1] < 0.5 * errors[0]


def test_without_tokens_or_for_inputs_that_are_never_there_codes_are_the_nearest() -> None:
    torch.manual_seed(2)
    weight = torch.randn(16, 64)
    scales = choose_scales(weight, INT4)
    codes, found = round_by_hessian(weight, Hessian(64), INT4, act_order=True, damping=0.01)
    assert torch.equal(found, scales) and torch.equal(codes, round_to_codes(weight, scales, INT4))
    x = inputs_of(300, 64)
    x[:, 7] = 0
    codes, found = round_by_hessian(weight, hessian_of(x), INT4, act_order=False, damping=0.01)
    assert torch.equal(codes[:, 7], round_to_codes(weight, found, INT4)[:, 7])


def test_fewer_tokens_than_inputs_and_no_damping_still_give_codes() -> None:
    torch.manual_seed(3)
    weight = torch.randn(16, 96)
    codes, scales = round_by_hessian(
        weight, hessian_of(inputs_of(5, 96, rank=2)), INT4, act_order=True, damping=0.0
    )
    assert (dequantised(codes, scales) - weight).norm() < weight.norm()


def test_a_hessian_is_a_sum_over_all_tokens() -> None:
    x = inputs_of(5000, 32)
    hessian = Hessian(32)
    for part in x.bfloat16().split(700):
        hessian.add(part)
    assert hessian.tokens == 5000
    torch.testing.assert_close(
        hessian.sums, x.bfloat16().float().T @ x.bfloat16().float(), rtol=1e-4, atol=0.5
    )
