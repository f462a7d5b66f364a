"""Quantised products in C++: those of what the weight stands for, on every instruction set."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from pageant.kernels.cpu import CpuKernels
from pageant.kernels.quantized import Bits, QuantizedWeight, dequantize, empty_quantized
from pageant.kernels.reference import ReferenceKernels
from tests.kernels.conftest import OF_WHOLE_NUMBERS, in_eight_bits

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
BITS: list[Bits] = [8, 5, 4]
INPUTS = [64, 96, 256, 1000, 1031]


def quantized(kernels: ReferenceKernels, weight: Tensor, bits: Bits) -> QuantizedWeight:
    made = empty_quantized(tuple(weight.shape), bits, "cpu")
    for one, into in zip(weight, made, strict=True) if weight.dim() == 3 else [(weight, made)]:
        kernels.quantize(one, into)
    return made


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("inputs", INPUTS)
def test_a_product_is_that_of_the_dequantised_weight_bit_by_bit(
    leveled: CpuKernels, bits: Bits, dtype: torch.dtype, inputs: int
) -> None:
    if dtype != torch.float32 and leveled.level in OF_WHOLE_NUMBERS:
        pytest.skip("x is rounded too")
    kernels = CpuKernels(leveled.level, deterministic=True)
    made = quantized(kernels, torch.randn(123, inputs).to(dtype), bits)
    plain, bias = dequantize(made, dtype), torch.randn(123).to(dtype)
    x = torch.randn(200, inputs + 3).to(dtype)[:, :inputs]
    for rows in (0, 1, 2, 3, 4, 5, 6, 7, 13, 17, 33, 97, 200):
        assert torch.equal(kernels.linear(x[:rows], made, bias), kernels.linear(x[:rows], plain, bias)), rows
        assert torch.equal(kernels.logits(x[:rows], made), kernels.logits(x[:rows], plain)), rows


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("inputs", [1, 31, 33, *INPUTS])
@pytest.mark.parametrize("outputs", [5, 123, 160])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("leveled", OF_WHOLE_NUMBERS, indirect=True)
def test_a_product_of_whole_numbers_is_that_of_the_rounded_rows(
    leveled: CpuKernels, bits: Bits, inputs: int, outputs: int, dtype: torch.dtype
) -> None:
    kernels = CpuKernels(leveled.level, deterministic=True)
    made = quantized(kernels, torch.randn(outputs, inputs).to(dtype), bits)
    bias = torch.randn(outputs).to(dtype)
    x = torch.randn(200, inputs + 3).to(dtype)[:, :inputs] * torch.logspace(-2, 2, 200)[:, None].to(dtype)
    x[3, :40] = 0
    expected = in_eight_bits(x) @ dequantize(made, torch.float32).double().T
    for rows in (0, 1, 2, 3, 4, 5, 16, 97, 200):
        found = kernels.logits(x[:rows], made)
        error = (found - expected[:rows]).abs() / x[:rows].double().norm(dim=1, keepdim=True).clamp(min=1e-9)
        assert (error < 1e-5).all()
        biased = (found + bias.float()).to(dtype)
        assert torch.equal(kernels.linear(x[:rows], made, bias), biased)


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("inputs", INPUTS)
@pytest.mark.parametrize("leveled", ["amx", "emulated_amx"], indirect=True)
def test_a_product_of_many_rows_is_that_of_the_dequantised_weight_bit_by_bit(
    leveled: CpuKernels, bits: Bits, inputs: int
) -> None:
    made = quantized(leveled, torch.randn(123, inputs).bfloat16(), bits)
    plain, bias = dequantize(made, torch.bfloat16), torch.randn(123).bfloat16()
    x = torch.randn(600, inputs + 3).bfloat16()[:, :inputs]
    for rows in (leveled.rows_alike + 1, 97, 200, 600):
        assert torch.equal(leveled.linear(x[:rows], made, bias), leveled.linear(x[:rows], plain, bias)), rows


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_none_spoils_its_own_row_alone(leveled: CpuKernels, bits: Bits, bad: float) -> None:
    made = quantized(leveled, torch.randn(32, 128).bfloat16(), bits)
    for rows in (3, 7, 20, 90):
        x = torch.randn(rows, 128).bfloat16()
        right = leveled.linear(x, made)
        x[1, 70] = bad
        found = leveled.linear(x, made)
        assert not found[1].isfinite().any(), rows
        others = torch.arange(rows) != 1
        assert torch.equal(found[others], right[others]), rows


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_embeddings_are_rows_of_the_dequantised_weight(
    leveled: CpuKernels, bits: Bits, dtype: torch.dtype
) -> None:
    for inputs in INPUTS:
        made = quantized(leveled, torch.randn(123, inputs).to(dtype), bits)
        ids = torch.randint(123, (17,))
        assert torch.equal(leveled.embed(ids, made, dtype), dequantize(made, dtype)[ids])


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("deterministic", [False, True])
def test_rows_alone_and_among_1_to_200_others(
    leveled: CpuKernels, bits: Bits, dtype: torch.dtype, deterministic: bool
) -> None:
    kernels = CpuKernels(leveled.level, deterministic=deterministic)
    x, made = torch.randn(200, 320).to(dtype), quantized(kernels, torch.randn(123, 320).to(dtype), bits)
    alone = torch.cat([kernels.linear(row, made) for row in x.split(1)])
    unlike = leveled.level.endswith("amx") and dtype == torch.bfloat16  # from some rows on, by default
    counts = (*range(1, 66), 80, 97, 128, 200)
    for count in (count for count in counts if not unlike or count <= kernels.rows_alike):
        assert torch.equal(kernels.linear(x[:count], made), alone[:count]), f"{count} rows"
        assert torch.equal(kernels.linear(x[-count:], made), alone[-count:]), f"{count} last rows"


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_quantised_experts_are_products_of_their_rows(
    leveled: CpuKernels, bits: Bits, dtype: torch.dtype
) -> None:
    """Expert 0 gets all tokens, which is more than it takes at once; the others a few, or one."""
    kernels = CpuKernels(leveled.level, deterministic=True)
    num_experts, hidden, inner = 20, 70, 45
    x = torch.randn(150, hidden).to(dtype)
    gate_up, down = (
        quantized(kernels, torch.randn(num_experts, *shape).to(dtype) / 8, bits)
        for shape in ((2 * inner, hidden), (hidden, inner))
    )
    logits = torch.randn(150, num_experts).to(dtype)
    logits[:, 0] = 9.0
    weights, experts = kernels.route(logits, 3, True)
    found = kernels.moe(x, gate_up, down, weights, experts, "silu")
    for token in (0, 70, 149):
        row = slice(token, token + 1)
        expected = torch.zeros(hidden)
        for weight, expert in zip(weights[token], experts[token], strict=True):
            made = kernels.silu_and_mul(kernels.linear(x[row], gate_up[int(expert)]))
            expected += weight * kernels.linear(made, down[int(expert)])[0].float()
        torch.testing.assert_close(found[token], expected.to(dtype))
        assert torch.equal(
            kernels.moe(x[row], gate_up, down, weights[row], experts[row], "silu")[0], found[token]
        )


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
