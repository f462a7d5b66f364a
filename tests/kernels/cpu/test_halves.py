"""Products with a weight in halves: those of the same weight in tiles, bit by bit."""

from __future__ import annotations

import pytest
import torch

from pageant.kernels.cpu import CpuKernels
from pageant.kernels.quantized import QuantizedWeight, empty_quantized
from tests.kernels.conftest import OF_WHOLE_NUMBERS

ROWS = (1, 2, 3, 4, 7, 8, 9, 16, 17, 64, 65, 80, 81, 100, 192, 200, 300)


def halves_and_tiles(
    kernels: CpuKernels, outputs: int, inputs: int, dtype: torch.dtype
) -> tuple[QuantizedWeight, QuantizedWeight]:
    """The same matrix, both ways."""
    if dtype not in kernels.halves:
        pytest.skip("such products do not take halves")
    halves = empty_quantized((outputs, inputs), 8, "cpu", in_tiles=True, in_halves=True)
    kernels.quantize(torch.randn(outputs, inputs).to(dtype), halves)
    tiles = empty_quantized((outputs, inputs), 8, "cpu", in_tiles=True)
    tiles.fill(halves.in_rows())
    return halves, tiles


def test_levels_that_take_halves_take_tiles_too(leveled: CpuKernels) -> None:
    expected = {torch.bfloat16, torch.float16} if leveled.level in OF_WHOLE_NUMBERS else set()
    assert leveled.halves == expected <= leveled.quantized_tiles


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize(("outputs", "inputs"), [(16, 32), (48, 96), (112, 64), (256, 544)], ids=str)
def test_products_and_rows_are_those_of_tiles_bit_by_bit(
    leveled: CpuKernels, outputs: int, inputs: int, dtype: torch.dtype, deterministic: bool
) -> None:
    kernels = CpuKernels(leveled.level, deterministic=deterministic)
    halves, tiles = halves_and_tiles(kernels, outputs, inputs, dtype)
    bias = torch.randn(outputs).to(dtype)
    for count in ROWS:
        x = torch.randn(count, inputs + 8).to(dtype)[:, :inputs]
        assert torch.equal(kernels.linear(x, halves, bias), kernels.linear(x, tiles, bias)), count
        assert torch.equal(kernels.logits(x, halves), kernels.logits(x, tiles)), count
    ids = torch.randint(outputs, (40,))
    assert torch.equal(kernels.embed(ids, halves, dtype), kernels.embed(ids, tiles, dtype))
