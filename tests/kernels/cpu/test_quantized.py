"""Quantised products in C++: the bits of the dequantised weight's product, on every instruction set."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from pageant.kernels.cpu import CpuKernels
from pageant.kernels.quantized import Bits, QuantizedWeight, dequantize, empty_quantized
from pageant.kernels.reference import ReferenceKernels

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
BITS: list[Bits] = [8, 4]
INPUTS = [64, 96, 256, 1000, 1031]


def quantized(kernels: ReferenceKernels, weight: Tensor, bits: Bits) -> QuantizedWeight:
    made = empty_quantized(tuple(weight.shape), bits, "cpu")
    kernels.quantize(weight, made)
    return made


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("inputs", INPUTS)
def test_a_product_is_that_of_the_dequantised_weight_bit_by_bit(
    leveled: CpuKernels, bits: Bits, dtype: torch.dtype, inputs: int
) -> None:
    kernels = CpuKernels(leveled.level, deterministic=True)
    made = quantized(kernels, torch.randn(123, inputs).to(dtype), bits)
    plain, bias = dequantize(made, dtype), torch.randn(123).to(dtype)
    x = torch.randn(200, inputs + 3).to(dtype)[:, :inputs]
    for rows in (0, 1, 2, 3, 4, 5, 6, 7, 13, 97, 200):
        assert torch.equal(kernels.linear(x[:rows], made, bias), kernels.linear(x[:rows], plain, bias)), rows
        assert torch.equal(kernels.logits(x[:rows], made), kernels.logits(x[:rows], plain)), rows
    ids = torch.randint(123, (17,))
    assert torch.equal(kernels.embed(ids, made, dtype), plain[ids])


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_alone_and_among_1_to_64_others(cpu: CpuKernels, bits: Bits, dtype: torch.dtype) -> None:
    x, made = torch.randn(64, 320).to(dtype), quantized(cpu, torch.randn(123, 320).to(dtype), bits)
    alone = torch.cat([cpu.linear(row, made) for row in x.split(1)])
    for count in range(1, 65):
        assert torch.equal(cpu.linear(x[:count], made), alone[:count]), f"{count} rows"
        assert torch.equal(cpu.linear(x[-count:], made), alone[-count:]), f"{count} last rows"


@pytest.mark.parametrize("dtype", DTYPES)
def test_logits_of_a_row_alone_and_among_others(deterministic: CpuKernels, dtype: torch.dtype) -> None:
    hidden, head = torch.randn(40, 96).to(dtype), torch.randn(333, 96).to(dtype)
    alone = torch.cat([deterministic.logits(row, head) for row in hidden.split(1)])
    assert torch.equal(deterministic.logits(hidden, head), alone)


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_weights_are_quantised_as_the_reference_does(
    leveled: CpuKernels, reference: ReferenceKernels, bits: Bits, dtype: torch.dtype
) -> None:
    weight = torch.randn(200, 1031, generator=torch.Generator().manual_seed(1)).to(dtype)
    ours, theirs = quantized(leveled, weight, bits), quantized(reference, weight, bits)
    assert (ours.scales == theirs.scales).float().mean() > 0.99
    assert (ours.values == theirs.values).float().mean() > 0.99
    errors = [(dequantize(made, torch.float32) - weight.float()).norm() for made in (ours, theirs)]
    torch.testing.assert_close(errors[0], errors[1], atol=0, rtol=1e-3)
