"""Weights in tiles: what they hold, and products with them."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from pageant.kernels.cpu import CpuKernels
from pageant.kernels.memory import Pages
from pageant.kernels.reference import ReferenceKernels
from pageant.kernels.tiled import TiledWeight, empty_tiled, fit_tiles

BFLOAT16 = torch.bfloat16


def in_tiles(weight: torch.Tensor) -> TiledWeight:
    rows, inputs = weight.shape
    tiled = empty_tiled((rows, inputs), weight.dtype, Pages("cpu"))
    tiled.fill(weight)
    return tiled


def test_tiles_follow_one_another_along_a_panel() -> None:
    weight = torch.arange(32 * 96).view(32, 96).float()
    tiles = in_tiles(weight).tiles
    for panel in range(2):
        for along in range(3):
            part = weight[16 * panel : 16 * panel + 16, 32 * along : 32 * along + 32]
            for pair in range(16):
                assert torch.equal(tiles[panel, along, pair], part[:, 2 * pair : 2 * pair + 2])


def test_rows_are_a_view_and_hold_what_they_are_given() -> None:
    weight = torch.randn(64, 32)
    tiled = empty_tiled((64, 32), BFLOAT16, Pages("cpu"))
    for start in (0, 16, 48):
        stop = 48 if start == 16 else start + 16
        tiled[start:stop].fill(weight[start:stop])
        assert tiled[start:stop].shape == (stop - start, 32)
    assert tiled.shape == (64, 32) and tiled.nbytes == 64 * 32 * 2
    assert torch.equal(tiled.plain(), weight.bfloat16())


@pytest.mark.parametrize("rows", [slice(8, 32), slice(0, 24), slice(0, 32, 2)])
def test_parts_of_panels_are_refused(rows: slice) -> None:
    with pytest.raises(ValueError, match="expected panels of 16"):
        in_tiles(torch.randn(32, 32))[rows]


def test_a_weight_may_begin_anywhere_in_its_storage() -> None:
    weight = torch.randn(16 * 32 + 1).bfloat16()[1:].view(16, 32)
    assert torch.equal(in_tiles(weight).plain(), weight)


def test_columns_are_taken_for_what_they_are() -> None:
    weight = torch.randn(32, 48).T
    assert torch.equal(in_tiles(weight).plain(), weight)


@pytest.mark.parametrize(
    ("rows", "inputs", "fits"), [((48, 16, 16), 64, True), ((40, 8), 64, False), ((16,), 48, False)]
)
def test_whole_panels_of_whole_tiles_fit(rows: tuple[int, ...], inputs: int, fits: bool) -> None:
    assert fit_tiles(rows, inputs) == fits


def test_levels_with_tiles_say_so(every_level: ReferenceKernels) -> None:
    level = every_level.level if isinstance(every_level, CpuKernels) else "reference"
    by_unit = level in ("amx", "emulated_amx")
    assert every_level.tiled_dtypes == (frozenset() if level in ("reference", "portable") else {BFLOAT16})
    if isinstance(every_level, CpuKernels):
        assert every_level.unit_dtypes == ({BFLOAT16} if by_unit else frozenset())


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(
    ("outputs", "inputs"), [(16, 32), (48, 96), (112, 64), (512, 1056)], ids=lambda size: str(size)
)
def test_a_product_with_tiles_is_that_with_rows_bit_by_bit(
    every_level: ReferenceKernels, outputs: int, inputs: int, biased: bool
) -> None:
    weight = torch.randn(outputs, inputs).bfloat16()
    bias = torch.randn(outputs).bfloat16() if biased else None
    tiled = in_tiles(weight)
    for rows, apart in product((1, 3, 16, 17, 40, 64, 65, 100, 300), (0, 8, 32)):
        x = torch.randn(rows, inputs + apart).bfloat16()[:, :inputs]
        assert torch.equal(every_level.linear(x, tiled, bias), every_level.linear(x, weight, bias)), (
            f"{rows} rows"
        )
    columns = torch.randn(inputs, 5).bfloat16().T
    assert torch.equal(every_level.linear(columns, tiled, bias), every_level.linear(columns, weight, bias))


@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh"])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(("inner", "inputs"), [(16, 32), (48, 96), (2064, 64)], ids=lambda size: str(size))
def test_what_is_gated_at_once_is_what_is_gated_after_the_product_bit_by_bit(
    every_level: ReferenceKernels, inner: int, inputs: int, biased: bool, activation: str
) -> None:
    weight = torch.randn(2 * inner, inputs).bfloat16()
    bias = torch.randn(2 * inner).bfloat16() if biased else None
    for rows in (1, 3, 16, 17, 40, 64, 65, 100, 600):
        x = torch.randn(rows, inputs + 8).bfloat16()[:, :inputs]
        expected = every_level.act_and_mul(every_level.linear(x, weight, bias), activation)
        for one in (weight, in_tiles(weight)):
            assert torch.equal(every_level.gated_linear(x, one, bias, activation), expected), f"{rows} rows"


def test_other_dtypes_than_a_levels_own_are_multiplied_too(every_level: ReferenceKernels) -> None:
    x, weight = torch.randn(3, 64), torch.randn(32, 64)
    torch.testing.assert_close(every_level.linear(x, in_tiles(weight)), x @ weight.T)


@pytest.mark.parametrize("dtype", [BFLOAT16, torch.float16, torch.float32])
def test_rows_are_gathered_from_tiles(every_level: ReferenceKernels, dtype: torch.dtype) -> None:
    weight = torch.randn(64, 96).to(dtype)
    token_ids = torch.randint(0, 64, (37,))
    assert torch.equal(every_level.embed(token_ids, in_tiles(weight), dtype), weight[token_ids])


@pytest.mark.parametrize("rows", [1, 3, 17, 100])
def test_logits_of_a_head_in_tiles_are_not_rounded(every_level: ReferenceKernels, rows: int) -> None:
    weight, hidden = torch.randn(64, 96).bfloat16(), torch.randn(rows, 96).bfloat16()
    found = every_level.logits(hidden, in_tiles(weight))
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, hidden.float() @ weight.float().T, rtol=1e-4, atol=1e-4)
    if BFLOAT16 in every_level.tiled_dtypes:
        assert torch.equal(every_level.logits(hidden[-1:], in_tiles(weight))[0], found[-1])
