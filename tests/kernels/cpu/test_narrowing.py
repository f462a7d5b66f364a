"""Logits of what masks allow: the same bits as those of a whole product, wherever a mask or none asks for them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from pageant.kernels.base import UNMASKED, VOID, SamplingTensors, TokenMasks
from pageant.kernels.cpu import CpuKernels
from pageant.kernels.memory import Pages
from pageant.kernels.quantized import empty_quantized
from pageant.kernels.tiled import LinearWeight, empty_tiled

HIDDEN = 96
WEIGHTS = ["plain", "plain in tiles", "int8", "int8 in tiles", "int4"]


def head(kernels: CpuKernels, vocab_size: int, dtype: torch.dtype, kind: str) -> LinearWeight:
    weight = torch.randn(vocab_size, HIDDEN).to(dtype)
    if kind == "plain":
        return weight
    if kind == "plain in tiles":
        if dtype not in kernels.tiled_dtypes:
            pytest.skip("such products do not take tiles")
        tiled = empty_tiled((vocab_size, HIDDEN), dtype, Pages("cpu"))
        tiled.fill(weight)
        return tiled
    in_tiles = kind.endswith("tiles")
    if in_tiles and dtype not in kernels.quantized_tiles:
        pytest.skip("such products do not take tiles")
    made = empty_quantized((vocab_size, HIDDEN), 4 if kind == "int4" else 8, "cpu", in_tiles=in_tiles)
    kernels.quantize(weight, made)
    return made


def packed(allowed: Tensor) -> Tensor:
    """Masks [S, V] of truth values as bits."""
    padded = torch.nn.functional.pad(allowed, (0, -allowed.shape[1] % 32)).numpy()
    return torch.from_numpy(np.packbits(padded, axis=1, bitorder="little").view(np.int32))


@pytest.mark.parametrize("kind", WEIGHTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@given(data=st.data())
def test_what_masks_allow_is_as_in_the_whole_product(
    leveled: CpuKernels, dtype: torch.dtype, kind: str, data: st.DataObject
) -> None:
    torch.manual_seed(data.draw(st.integers(0, 99)))
    rows, count = data.draw(st.sampled_from([1, 2, 17, 65, 81, 97, 130])), 6
    vocab_size = (
        32 * data.draw(st.integers(1, 12)) if kind.endswith("tiles") else data.draw(st.integers(17, 400))
    )
    kernels = CpuKernels(leveled.level, deterministic=True)
    weight = head(kernels, vocab_size, dtype, kind)
    # Of a few panels, of many, of all and of none.
    allowed = torch.rand(count, vocab_size) < torch.tensor([0.005, 0.02, 0.05, 0.2, 1, 0])[:, None]
    bits, last = (
        packed(allowed),
        packed(allowed[torch.randperm(count)]),
    )  # what the table says before masks come
    slots = torch.tensor(data.draw(st.lists(st.integers(-2, count - 1), min_size=rows, max_size=rows)))
    positions, expected = torch.zeros(count, dtype=torch.int64), torch.zeros(rows, dtype=torch.int64)
    came, waits = data.draw(st.booleans()), data.draw(st.booleans())
    expected[0] = data.draw(st.integers(0, 1)) if not came else 0  # which may come never
    if not came:
        slots[0] = slots[0].clamp(min=0)  # so that one is missing
    at_first = expected if came else torch.ones_like(expected)
    patience = torch.full((rows + 1,), int(waits))
    hidden = torch.randn(rows, HIDDEN + 3).to(dtype)[:, :HIDDEN]
    whole = kernels.logits(hidden, weight)

    narrowed = kernels.narrow(hidden, slots, bits if came else last, positions, at_first, patience)
    logits = kernels.logits(narrowed.hidden, weight, narrowed.needed)
    rest = kernels.narrow_rest(hidden, slots, bits, positions, expected, narrowed)
    again = kernels.logits(narrowed.hidden, weight, rest.needed._replace(into=logits))

    assert bool(narrowed.came) == came
    assert again.data_ptr() == logits.data_ptr()
    assert sorted(rest.places.tolist()) == list(range(rows))
    needed = allowed[slots.clamp(min=0)]
    needed[slots == UNMASKED] = True
    needed[(expected > 0) & (slots >= 0)] = True
    needed[slots == VOID] = False
    assert torch.equal(logits[rest.places][needed], whole[needed])
    if not came and not waits:
        assert torch.equal(logits[rest.places], whole) and not rest.narrow.any()


def test_little_is_computed_where_masks_allow_little(cpu: CpuKernels) -> None:
    """Give rows 20 panels of 16 tokens: one needs all, since it has no mask, one nearly all, one three, one none."""
    allowed = torch.zeros(2, 320, dtype=torch.bool)
    allowed[0, 5:] = True
    allowed[1, [3, 17, 40]] = True
    hidden, weight = torch.randn(4, HIDDEN), torch.randn(320, HIDDEN)
    slots, bits = torch.tensor([1, UNMASKED, VOID, 0]), packed(allowed)
    positions, expected, patience = (
        torch.tensor([7, 7]),
        torch.tensor([7, 0, 0, 7]),
        torch.ones(5, dtype=torch.int64),
    )
    at_first = torch.tensor([8, 0, 0, 7])
    narrowed = cpu.narrow(hidden, slots, bits, positions, at_first, patience)
    assert narrowed.order.tolist() == [1, 3, 0, 2]
    assert torch.equal(narrowed.hidden, hidden[narrowed.order])
    assert torch.equal(narrowed.patience, patience)
    assert narrowed.spared.tolist() == [1_000_000 * (2 * 17) // (4 * 20)]
    into = torch.full((4, 320), float("nan"))
    cpu.logits(narrowed.hidden, weight, narrowed.needed._replace(into=into))
    assert into.isnan().any(1).tolist() == [False, False, True, True]
    rest = cpu.narrow_rest(hidden, slots, bits, positions, expected, narrowed)
    cpu.logits(narrowed.hidden, weight, rest.needed._replace(into=into))
    assert rest.narrow.tolist() == [2]
    assert not into[2, :48].isnan().any() and into[2, 48:].isnan().all()


def test_nobody_waits_where_no_rows_are_left(cpu: CpuKernels) -> None:
    slots, bits = torch.tensor([0, UNMASKED]), packed(torch.ones(1, 320, dtype=torch.bool))
    table, expected, patience = torch.tensor([7]), torch.tensor([8, 0]), torch.tensor([5, 5, 5])
    narrowed = cpu.narrow(torch.randn(2, HIDDEN), slots, bits, table, expected, patience)
    assert narrowed.patience.tolist() == [0, 0, 0]


def test_of_a_row_that_is_void_nothing_is_read(
    cpu: CpuKernels, make_params: Callable[..., SamplingTensors]
) -> None:
    logits = torch.full((2, 320), float("nan"))
    logits[1] = torch.arange(320)
    tokens = cpu.sample_by_table(
        logits,
        make_params(2, temperature=0.0),
        torch.tensor([VOID, UNMASKED]),
        torch.zeros(1, 10, dtype=torch.int32),
    )
    assert tokens.tolist() == [0, 319]


def test_draws_find_logits_where_they_are(
    cpu: CpuKernels, make_params: Callable[..., SamplingTensors]
) -> None:
    torch.manual_seed(0)
    logits, params = torch.randn(7, 640), make_params(7)
    allowed = torch.rand(3, 640) < 0.1
    rows = torch.tensor([0, 2, 6])
    expected = cpu.sample(logits, params, TokenMasks(rows, packed(allowed)))
    slots = torch.full((7,), -1)
    slots[rows] = torch.arange(3)
    places = torch.randperm(7)
    moved = torch.empty_like(logits)
    moved[places] = logits
    assert torch.equal(cpu.sample_by_table(moved, params, slots, packed(allowed), places), expected)
