"""Quantised weights in tiles: how they lie, and that all that takes them makes of them what it makes of rows."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from pageant.kernels.cpu import CpuKernels
from pageant.kernels.cpu.levels import LEVELS, levels_here
from pageant.kernels.quantized import Bits, QuantizedWeight, dequantize, empty_quantized
from pageant.kernels.reference import ReferenceKernels
from tests.kernels.conftest import OF_WHOLE_NUMBERS

BITS: list[Bits] = [8, 5, 4]
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
ROWS = (1, 3, 8, 9, 16, 17, 64, 65, 80, 81, 100, 200, 300)


def both(kernels: ReferenceKernels, weight: Tensor, bits: Bits) -> tuple[QuantizedWeight, QuantizedWeight]:
    """A matrix, or a stack of them, in rows and in tiles."""
    made = [empty_quantized(tuple(weight.shape), bits, "cpu", in_tiles) for in_tiles in (False, True)]
    for one in made:
        for part, destination in zip(weight, one, strict=True) if weight.dim() == 3 else [(weight, one)]:
            kernels.quantize(part, destination)
    return made[0], made[1]


@pytest.mark.parametrize("bits", BITS)
def test_four_bytes_of_each_row_of_a_panel_follow_one_another(bits: Bits) -> None:
    rows, tiles = both(ReferenceKernels(), torch.randn(48, 160), bits)
    unit_bytes = 8 * bits
    for row in range(48):
        for unit in range(3):
            bytes_of_row = rows.values[row, unit * unit_bytes : (unit + 1) * unit_bytes]
            assert torch.equal(tiles.values[row // 16, unit, :, row % 16].flatten(), bytes_of_row)
            assert torch.equal(
                tiles.scales[row // 16, unit, row % 16], rows.scales[row, 2 * unit : 2 * unit + 2]
            )


@pytest.mark.parametrize("bits", BITS)
def test_parts_are_views_of_the_whole_and_come_back_in_rows(bits: Bits) -> None:
    rows, tiles = both(ReferenceKernels(), torch.randn(3, 64, 96), bits)
    again = tiles.in_rows()
    assert not again.in_tiles and again.shape == tiles.shape == (3, 64, 96) and tiles.nbytes == rows.nbytes
    assert torch.equal(again.values, rows.values) and torch.equal(again.scales, rows.scales)
    part = tiles[2][16:48]
    assert part.shape == (32, 96)
    assert torch.equal(dequantize(part, torch.float32), dequantize(rows[2][16:48], torch.float32))
    part.fill(rows[0][:32])
    assert torch.equal(dequantize(tiles[2][16:48], torch.float32), dequantize(rows[0][:32], torch.float32))


@pytest.mark.parametrize("rows", [slice(8, 32), slice(0, 24), slice(0, 32, 2), 3, torch.tensor([0, 1])])
def test_parts_of_panels_are_refused(rows: int | slice | Tensor) -> None:
    with pytest.raises(ValueError, match="expected panels of 16"):
        empty_quantized((32, 64), 8, "cpu", in_tiles=True)[rows]


def test_levels_that_like_tiles_say_so(every_level: ReferenceKernels) -> None:
    level = every_level.level if isinstance(every_level, CpuKernels) else "reference"
    expected = {"emulated_amx": {torch.bfloat16}} | {
        name: {torch.bfloat16, torch.float16} for name in OF_WHOLE_NUMBERS
    }
    assert every_level.quantized_tiles == expected.get(level, frozenset())


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("outputs", "inputs"), [(16, 32), (48, 96), (112, 64), (256, 544)], ids=lambda size: str(size)
)
def test_products_and_rows_are_those_of_rows_bit_by_bit(
    every_level: ReferenceKernels, outputs: int, inputs: int, dtype: torch.dtype, bits: Bits
) -> None:
    rows, tiles = both(every_level, torch.randn(outputs, inputs).to(dtype), bits)
    bias = torch.randn(outputs).to(dtype)
    for count in ROWS:
        for apart in (8, 32):
            x = torch.randn(count, inputs + apart).to(dtype)[:, :inputs]
            assert torch.equal(every_level.linear(x, tiles, bias), every_level.linear(x, rows, bias)), count
        assert torch.equal(every_level.logits(x, tiles), every_level.logits(x, rows)), count
    ids = torch.randint(outputs, (40,))
    assert torch.equal(every_level.embed(ids, tiles, dtype), every_level.embed(ids, rows, dtype))


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("level", [level for level in LEVELS if level in levels_here()])
def test_deterministic_products_of_any_number_of_rows_are_those_of_each_alone(level: str, bits: Bits) -> None:
    """200 rows are a block of 192 and one of 8, which is few."""
    kernels = CpuKernels(level, deterministic=True)
    rows, tiles = both(kernels, torch.randn(48, 96).bfloat16(), bits)
    x = torch.randn(600, 96).bfloat16()
    alone = torch.cat([kernels.linear(row, rows) for row in x.split(1)])
    for count in (81, 192, 200, 600):
        assert torch.equal(kernels.linear(x[:count], tiles), alone[:count]), count


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("level", [level for level in LEVELS if level in levels_here()])
def test_results_of_many_rows_are_those_of_few(level: str, dtype: torch.dtype) -> None:
    """Megabytes of results take another way to memory."""
    kernels = CpuKernels(level, deterministic=True)
    _, tiles = both(kernels, torch.randn(2064, 64).to(dtype), 8)
    x = torch.randn(600, 64).to(dtype)
    for bias in (None, torch.randn(2064).to(dtype)):
        few = torch.cat([kernels.linear(rows, tiles, bias) for rows in x.split(40)])
        assert torch.equal(kernels.linear(x, tiles, bias), few)


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_recorded_products_are_those_that_were_recorded(
    every_level: ReferenceKernels, bits: Bits, dtype: torch.dtype
) -> None:
    if not isinstance(every_level, CpuKernels):
        pytest.skip("only the C++ kernels record")
    _, tiles = both(every_level, torch.randn(64, 96).to(dtype), bits)
    x = torch.randn(100, 96).to(dtype)

    def run() -> Tensor:
        return every_level.gated_linear(x, tiles, None, "silu")

    again = every_level.capture(run)
    x.copy_(torch.randn(100, 96))
    assert torch.equal(again(), run())


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh"])
@pytest.mark.parametrize(("inner", "inputs"), [(16, 32), (48, 96), (160, 64)], ids=lambda size: str(size))
def test_what_is_gated_at_once_is_what_is_gated_after_the_product_bit_by_bit(
    every_level: ReferenceKernels, inner: int, inputs: int, activation: str, bits: Bits
) -> None:
    rows, tiles = both(every_level, torch.randn(2 * inner, inputs).bfloat16(), bits)
    for bias in (None, torch.randn(2 * inner).bfloat16()):
        for count in (*ROWS, 600):
            x = torch.randn(count, inputs + 8).bfloat16()[:, :inputs]
            expected = every_level.act_and_mul(every_level.linear(x, rows, bias), activation)
            assert torch.equal(every_level.gated_linear(x, tiles, bias, activation), expected), (
                f"{count} rows"
            )


@pytest.mark.parametrize("bits", BITS)
def test_a_number_that_is_none_spoils_its_own_row_alone(every_level: ReferenceKernels, bits: Bits) -> None:
    _, tiles = both(every_level, torch.randn(32, 128).bfloat16(), bits)
    for count in (3, 40, 100):
        x = torch.randn(count, 128).bfloat16()
        right = every_level.linear(x, tiles)
        x[1, 70] = math.nan
        found = every_level.linear(x, tiles)
        assert not found[1].isfinite().any()
        found[1] = right[1]
        assert torch.equal(found, right), count


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_experts_in_tiles_are_those_in_rows(
    every_level: ReferenceKernels, dtype: torch.dtype, bits: Bits
) -> None:
    """Expert 0 gets all tokens, the others a few, or one."""
    gate_up, gate_up_tiles = both(every_level, torch.randn(20, 64, 96).to(dtype) / 8, bits)
    down, down_tiles = both(every_level, torch.randn(20, 96, 32).to(dtype) / 8, bits)
    logits = torch.randn(150, 20).to(dtype)
    logits[:, 0] = 9.0
    weights, experts = every_level.route(logits, 3, True)
    x = torch.randn(150, 96).to(dtype)
    expected = every_level.moe(x, gate_up, down, weights, experts, "silu")
    for first, second in ((gate_up_tiles, down_tiles), (gate_up_tiles, down)):
        assert torch.equal(every_level.moe(x, first, second, weights, experts, "silu"), expected)
