"""Logits of what masks allow: the same bits as those of a whole product, wherever a mask or none asks for them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from pageant.kernels.base import SamplingTensors, TokenMasks
from pageant.kernels.cpu import CpuKernels
from pageant.kernels.quantized import Weight, empty_quantized

HIDDEN = 96
WEIGHTS = ["plain", "int8", "int8 in tiles", "int4"]


def head(kernels: CpuKernels, vocab_size: int, dtype: torch.dtype, kind: str) -> Weight:
    weight = torch.randn(vocab_size, HIDDEN).to(dtype)
    if kind == "plain":
        return weight
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
    rows, slots_count = data.draw(st.integers(1, 20)), 6
    # A share of the vocabulary for each slot, in runs: nothing, a little, and more than half of it.
    vocab_size = (
        32 * data.draw(st.integers(1, 12)) if kind.endswith("tiles") else data.draw(st.integers(17, 400))
    )
    kernels = CpuKernels(leveled.level, deterministic=True)
    weight = head(kernels, vocab_size, dtype, kind)
    lengths = data.draw(st.lists(st.integers(0, vocab_size), min_size=slots_count, max_size=slots_count))
    starts = data.draw(st.lists(st.integers(0, vocab_size), min_size=slots_count, max_size=slots_count))
    places = torch.arange(vocab_size)
    allowed = torch.stack(
        [(places >= start) & (places < start + length) for start, length in zip(starts, lengths, strict=True)]
    )
    last = allowed[torch.randperm(slots_count)]  # what the table says before the masks come
    slots = torch.tensor(data.draw(st.lists(st.integers(-1, slots_count - 1), min_size=rows, max_size=rows)))
    came = data.draw(st.booleans())
    hidden = torch.randn(rows, HIDDEN + 3).to(dtype)[:, :HIDDEN]
    whole = kernels.logits(hidden, weight)

    narrowed = kernels.narrow(hidden, slots, packed(last))
    logits = kernels.logits(narrowed.hidden, weight, narrowed.needed)
    rest = kernels.narrow_rest(hidden, slots, packed(allowed), torch.tensor([int(came)]), narrowed)
    again = kernels.logits(narrowed.hidden, weight, rest.needed._replace(into=logits))

    assert again.data_ptr() == logits.data_ptr()
    assert sorted(rest.places.tolist()) == list(range(rows))
    needed = allowed[slots.clamp(min=0)] if came else torch.ones(rows, vocab_size, dtype=torch.bool)
    needed[slots < 0] = True
    assert torch.equal(logits[rest.places][needed], whole[needed])


def test_little_is_computed_where_masks_allow_little(cpu: CpuKernels) -> None:
    """Of 20 strips of 16 tokens one row needs all, since it has no mask, one nearly all, and one three: 43 of 60."""
    allowed = torch.zeros(2, 320, dtype=torch.bool)
    allowed[0, 5:] = True
    allowed[1, [3, 17, 40]] = True
    hidden, weight = torch.randn(3, HIDDEN), torch.randn(320, HIDDEN)
    slots, bits = torch.tensor([1, -1, 0]), packed(allowed)
    narrowed = cpu.narrow(hidden, slots, bits)
    assert narrowed.order.tolist() == [1, 2, 0]
    assert torch.equal(narrowed.hidden, hidden[narrowed.order])
    assert narrowed.known[0] == 1_000_000 - 1_000_000 * 43 // 60
    into = torch.full((3, 320), float("nan"))
    cpu.logits(narrowed.hidden, weight, narrowed.needed._replace(into=into))
    assert into.isnan().any(1).tolist() == [False, False, True]
    rest = cpu.narrow_rest(hidden, slots, bits, torch.tensor([1]), narrowed)
    cpu.logits(narrowed.hidden, weight, rest.needed._replace(into=into))
    assert rest.share.tolist() == [1_000_000 * 43 // 60]
    assert not into[2, :48].isnan().any() and into[2, 48:].isnan().all()


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
