"""Products with quantised weights beside the reference, which widens them first."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from pageant.kernels.base import Kernels
from pageant.kernels.quantized import Bits, QuantizedWeight, empty_quantized, quantize

Numbers = Callable[..., torch.Tensor]


def quantized(weight: torch.Tensor, bits: Bits) -> QuantizedWeight:
    """Return a quantised matrix, or a stack of them."""
    whole = empty_quantized(tuple(weight.shape), bits, weight.device)
    for part, into in [(weight, whole)] if weight.dim() == 2 else zip(weight, whole, strict=True):
        quantize(part, into)
    return whole


@pytest.mark.parametrize("bits", [8, 5, 4])
@pytest.mark.parametrize(
    ("rows", "inputs", "outputs"),
    [
        (0, 64, 8),
        (1, 64, 17),
        (3, 100, 33),
        (5, 1300, 16),
        (8, 2600, 5),
        (17, 520, 16),
        (70, 40, 20),
        (1, 512, 24),
        (6, 1024, 9),
    ],
)
def test_linear_and_logits(
    triton_kernels: Kernels,
    reference: Kernels,
    numbers: Numbers,
    assert_near: Callable[..., None],
    dtype: torch.dtype,
    rows: int,
    inputs: int,
    outputs: int,
    bits: Bits,
) -> None:
    x = numbers(rows, inputs, dtype=dtype, seed=1, spare=3)
    weight = quantized(numbers(outputs, inputs, dtype=dtype, seed=2), bits)
    bias = numbers(1, outputs, dtype=dtype, seed=3)[0]
    for given in (None, bias):
        found = triton_kernels.linear(x, weight, given)
        assert_near(found, reference.linear(x, weight, given), 8 * inputs**0.5)
    torch.testing.assert_close(
        triton_kernels.logits(x, weight), reference.logits(x, weight), atol=2e-4, rtol=1e-4
    )


@pytest.mark.parametrize("bits", [8, 5, 4])
def test_what_is_widened_is_what_it_stands_for(
    triton_kernels: Kernels, numbers: Numbers, dtype: torch.dtype, bits: Bits
) -> None:
    from pageant.kernels.quantized import dequantize
    from pageant.kernels.triton.products import widen

    weight = quantized(numbers(3, 5, 100, dtype=dtype, seed=1), bits)
    assert torch.equal(widen(weight, dtype), dequantize(weight, dtype))


@pytest.mark.parametrize("bits", [8, 5, 4])
def test_moe(
    triton_kernels: Kernels,
    reference: Kernels,
    numbers: Numbers,
    assert_near: Callable[..., None],
    dtype: torch.dtype,
    bits: Bits,
) -> None:
    x = numbers(9, 80, dtype=dtype, seed=1)
    gate_up = quantized(numbers(3, 2 * 40, 80, dtype=dtype, seed=2) * 0.2, bits)
    down = quantized(numbers(3, 80, 40, dtype=dtype, seed=3) * 0.2, bits)
    weights, experts = reference.route(numbers(9, 3, dtype=dtype, seed=4), 2, True)
    found = triton_kernels.moe(x, gate_up, down, weights, experts, "silu")
    assert_near(found, reference.moe(x, gate_up, down, weights, experts, "silu"), 16)
