"""Scales by trial, and the nearest codes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from pageant.models.quantizing.rounding import choose_scales, dequantised, round_to_codes
from pageant.models.quantizing.schemes import SCHEMES, Scheme

ALL = [*SCHEMES.values(), replace(SCHEMES["w4a16"], group_size=None)]


@pytest.mark.parametrize("scheme", ALL, ids=lambda scheme: f"{scheme.name}-{scheme.group_size}")
def test_scales_are_positive_exact_in_bfloat16_and_better_than_the_largest_numbers(scheme: Scheme) -> None:
    torch.manual_seed(0)
    weight = torch.randn(70, 256) * torch.rand(70, 1)
    weight[3] = 0
    scales = choose_scales(weight, scheme)
    assert scales.shape == (70, scheme.groups(256)) and (scales > 0).all()
    assert torch.equal(scales, scales.bfloat16().float())
    found = (dequantised(round_to_codes(weight, scales, scheme), scales) - weight).square().sum(1)
    groups = torch.unflatten(weight, 1, (scheme.groups(256), -1))
    plain = (groups.abs().amax(2) / (scheme.most + 0.5)).bfloat16().float().clamp(min=1e-20)
    by_largest = (dequantised(round_to_codes(weight, plain, scheme), plain) - weight).square().sum(1)
    assert (found <= by_largest * (1 + 1e-4)).all() and found.sum() < by_largest.sum()
    assert not found[3]


def test_errors_of_important_inputs_count_more() -> None:
    torch.manual_seed(1)
    scheme, weight = SCHEMES["w4a16"], torch.randn(64, 128)
    importance = torch.ones(128)
    importance[:16] = 100.0
    errors = []
    for counts in (None, importance):
        scales = choose_scales(weight, scheme, counts)
        error = (dequantised(round_to_codes(weight, scales, scheme), scales) - weight).square().sum(0)
        errors.append((float(error[:16].sum()), float(error.sum())))
    (plain, plain_all), (counted, counted_all) = errors
    assert counted < plain and counted_all > plain_all


@pytest.mark.parametrize("size", [1e-38, 1e-25, 1e30])
def test_tiny_and_huge_numbers_give_finite_scales(size: float) -> None:
    weight = torch.linspace(-1, 1, 64).view(2, 32) * size
    for scheme in (SCHEMES["int4"], SCHEMES["int8"]):
        scales = choose_scales(weight, scheme)
        found = dequantised(round_to_codes(weight, scales, scheme), scales)
        assert torch.isfinite(scales).all() and (scales > 0).all()
        assert (found - weight).norm() <= 0.2 * weight.norm() or size < 1e-30
