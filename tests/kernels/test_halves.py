"""Weights in halves: that these are the weights, and that the lower ones say nothing about them."""

from __future__ import annotations

import pytest
import torch

from pageant.kernels.halves import HALVED_INPUTS_MAX, HALVED_MOST, join, split
from pageant.kernels.quantized import QuantizedWeight, dequantize, empty_quantized, quantize
from pageant.kernels.reference import ReferenceKernels

ROWS, INPUTS = 48, 160
PADDED = 192


def halved(weight: torch.Tensor, kernels: ReferenceKernels | None = None) -> QuantizedWeight:
    made = empty_quantized(tuple(weight.shape), 8, "cpu", in_tiles=True, in_halves=True)
    (kernels or ReferenceKernels()).quantize(weight, made)
    return made


def test_both_halves_are_the_weight() -> None:
    q = torch.randint(-128, HALVED_MOST + 1, (5, HALVED_INPUTS_MAX)).to(torch.int8)
    q[0], q[1] = -128, HALVED_MOST
    upper, lower = split(q)
    assert upper.dtype == lower.dtype == torch.uint8 and upper.shape == (5, HALVED_INPUTS_MAX // 2)
    assert torch.equal(join(upper, lower), q)


@pytest.mark.parametrize("q", [-128, -7, 0, 1, 64, HALVED_MOST])
def test_lower_halves_are_any_of_16_numbers_whatever_the_weight_is(q: int) -> None:
    _, lower = split(torch.full((1, HALVED_INPUTS_MAX), q, dtype=torch.int8))
    counts = torch.bincount(torch.cat((lower & 15, lower >> 4)).flatten(), minlength=16).double()
    expected = HALVED_INPUTS_MAX / 16
    chi_squared = float(((counts - expected) ** 2 / expected).sum())
    assert chi_squared < 37.7, "more than of one in a thousand such draws"  # this one is always the same


def test_halves_lie_as_weights_of_4_bits_do() -> None:
    q = torch.randint(-128, HALVED_MOST + 1, (ROWS, PADDED)).to(torch.int8)
    rows = QuantizedWeight(8, q, torch.rand(ROWS, PADDED // 32).bfloat16(), (ROWS, INPUTS))
    made = empty_quantized((ROWS, INPUTS), 8, "cpu", in_tiles=True, in_halves=True)
    made.fill(rows)
    for part, half in zip((made.values, made.lower), split(q), strict=True):
        fours = empty_quantized((ROWS, INPUTS), 4, "cpu", in_tiles=True)
        fours.fill(QuantizedWeight(4, half, rows.scales, rows.shape))
        assert part is not None and torch.equal(part, fours.values)
    again = made.in_rows()
    assert torch.equal(again.values, q) and torch.equal(again.scales, rows.scales)
    assert made.nbytes == rows.nbytes


def test_some_rows_are_a_view_of_both_halves() -> None:
    weight, other = torch.randn(ROWS, INPUTS), torch.randn(16, INPUTS)
    made, rows = halved(weight), halved(other).in_rows()
    part = made[16:32]
    assert part.in_halves and part.shape == (16, INPUTS)
    before = dequantize(made, torch.float32)
    assert torch.equal(dequantize(part, torch.float32), before[16:32])
    part.fill(rows)
    before[16:32] = dequantize(rows, torch.float32)
    assert torch.equal(dequantize(made, torch.float32), before)


@pytest.mark.parametrize("shape", [(4, 32, 64), (32, HALVED_INPUTS_MAX + 64)])
def test_halves_are_of_matrices_of_so_many_inputs_only(shape: tuple[int, ...]) -> None:
    with pytest.raises(AssertionError, match="can have halves"):
        empty_quantized(shape, 8, "cpu", in_tiles=True, in_halves=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_every_level_quantises_as_the_reference_does(
    every_level: ReferenceKernels, dtype: torch.dtype
) -> None:
    weight = torch.randn(208, 1031, generator=torch.Generator().manual_seed(1)).to(dtype)
    found, expected = halved(weight, every_level).in_rows(), halved(weight).in_rows()
    assert (found.scales == expected.scales).float().mean() > 0.99
    assert (found.values == expected.values).float().mean() > 0.99
    assert int(found.values.max()) <= HALVED_MOST
    errors = [(dequantize(made, torch.float32) - weight.float()).norm() for made in (found, expected)]
    torch.testing.assert_close(errors[0], errors[1], atol=0, rtol=1e-3)


def test_a_weight_in_halves_is_quantised_a_few_rows_at_a_time() -> None:
    weight = torch.randn(2048, 1024)
    whole, parts = halved(weight), halved(weight[:16])
    quantize(weight[:16], parts)
    assert torch.equal(dequantize(whole[:16], torch.float32), dequantize(parts, torch.float32))
