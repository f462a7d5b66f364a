"""Logits that are screened: what is drawn from those that are needed is what is drawn from all."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from pageant.kernels.base import SamplingTensors
from pageant.kernels.cpu import CpuKernels
from pageant.kernels.quantized import QuantizedWeight, empty_quantized
from tests.kernels.conftest import in_eight_bits

DTYPES = [torch.bfloat16, torch.float16]
MakeParams = Callable[..., SamplingTensors]


@pytest.fixture(scope="module")
def screening(leveled: CpuKernels) -> CpuKernels:
    if not leveled.halves:
        pytest.skip("such kernels do not screen")
    return leveled


def head_of(kernels: CpuKernels, weight: Tensor) -> QuantizedWeight:
    made = empty_quantized(tuple(weight.shape), 8, "cpu", in_tiles=True, in_halves=True)
    kernels.quantize(weight, made)
    return made


def drawn(kernels: CpuKernels, hidden: Tensor, head: QuantizedWeight, params: SamplingTensors) -> list[int]:
    """The token by screened logits, and the one by all."""
    screened = kernels.logits(hidden, head, kernels.screen(hidden, head, params))
    return [int(kernels.sample(logits, params)) for logits in (screened, kernels.logits(hidden, head))]


@pytest.mark.parametrize("dtype", DTYPES)
@given(data=st.data())
def test_the_drawn_token_is_that_of_all_logits(
    screening: CpuKernels, make_params: MakeParams, dtype: torch.dtype, data: st.DataObject
) -> None:
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 999)))
    vocab_size, size = 16 * data.draw(st.integers(1, 200)), data.draw(st.integers(1, 300))
    weight = torch.randn(vocab_size, size, generator=generator)
    if data.draw(st.booleans(), label="ties"):
        weight = weight[torch.randint(max(1, vocab_size // 8), (vocab_size,), generator=generator)]
    scale = data.draw(st.sampled_from([1e-3, 0.1, 1, 10]))
    hidden = torch.randn(1, size, generator=generator) * scale
    params = make_params(
        1,
        temperature=data.draw(st.sampled_from([0.0, 0.3, 1.0, 5.0])),
        top_k=data.draw(st.sampled_from([0, 1, 2, 20, 256, 257, 9999])),
        top_p=data.draw(st.sampled_from([0.0, 0.5, 0.95, 1.0])),
        min_p=data.draw(st.sampled_from([0.0, 0.001, 0.1, 1.0])),
        seed=data.draw(st.integers(-(1 << 62), 1 << 62)),
        position=data.draw(st.integers(0, 1 << 40)),
    )
    head = head_of(screening, weight.to(dtype))
    found, expected = drawn(screening, hidden.to(dtype), head, params)
    assert found == expected


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_is_drawn_as_ever(
    screening: CpuKernels, make_params: MakeParams, dtype: torch.dtype, bad: float
) -> None:
    head = head_of(screening, torch.randn(512, 96).to(dtype))
    for asked in ({"temperature": 0.0}, {"top_k": 5}, {"min_p": 0.5}):
        hidden = torch.randn(1, 96).to(dtype)
        hidden[0, 40] = bad
        found, expected = drawn(screening, hidden, head, make_params(1, **asked))
        assert found == expected
    nothing = torch.zeros(1, 96, dtype=dtype)
    assert drawn(screening, nothing, head, make_params(1, temperature=0.0)) == [0, 0]


@pytest.mark.parametrize(
    "asked", [{"temperature": 0.0}, {"top_k": 3}, {"min_p": 0.5, "temperature": 0.1}, {"temperature": 1.0}]
)
def test_few_logits_are_needed(screening: CpuKernels, make_params: MakeParams, asked: dict[str, Any]) -> None:
    torch.manual_seed(0)  # of a hundred weights and hidden states one leaves more to `top_k`
    head = head_of(screening, torch.randn(8192, 256).bfloat16())
    hidden = torch.randn(1, 256).bfloat16()
    first, whole, ranges = (needed := screening.screen(hidden, head, make_params(1, **asked))).which[:3]
    assert (first, whole) == (0, 0)
    assert needed.into is not None
    left = (needed.into > -math.inf).view(-1, 16).any(1)
    assert 1 <= left.sum() <= 100, "of 512 panels of 16"
    starts_and_stops = needed.which[3 : 3 + 2 * int(ranges)].view(-1, 2)
    assert all(left[start // 16 : stop // 16].all() for start, stop in starts_and_stops.tolist())


@pytest.mark.parametrize("asked", [{"top_p": 0.5}, {"top_k": 257}, {"top_p": 0.9, "min_p": 1e-30}])
def test_all_are_needed_where_any_can_be_drawn(
    screening: CpuKernels, make_params: MakeParams, asked: dict[str, Any]
) -> None:
    head = head_of(screening, torch.randn(4096, 64).bfloat16())
    needed = screening.screen(torch.randn(1, 64).bfloat16(), head, make_params(1, **asked))
    assert needed.which[:3].tolist() == [0, 1, 0]


def bounds_of(kernels: CpuKernels, hidden: Tensor, head: QuantizedWeight, params: SamplingTensors) -> Tensor:
    """Return what no logit is above, where nothing is too small, but for the best panel, whose logits are there."""
    into = kernels.screen(hidden, head, params).into
    assert into is not None
    return into[0]


def deviation(hidden: Tensor, head: QuantizedWeight) -> Tensor:
    """The standard deviation of what lower halves add to each logit."""
    rows = head.in_rows()
    whole = in_eight_bits(hidden).unflatten(1, (-1, 32))  # as products have it
    variance = whole.square().sum(2).double() @ rows.scales.double().square().T * (16**2 - 1) / 12
    return variance[0].sqrt()


@pytest.mark.parametrize("kind", ["normal", "all alike", "all largest", "large lower halves"])
def test_bounds_are_eight_deviations_above_what_upper_halves_make(
    screening: CpuKernels, make_params: MakeParams, kind: str
) -> None:
    """Whatever weights are: even if somebody chose them so that their lower halves would all be large if nothing were
    added to them."""
    vocab_size, size = 1024, 1024
    weight = torch.randn(vocab_size, size)
    if kind == "all alike":
        weight = weight[:1].expand(vocab_size, size)
    if kind == "all largest":
        weight = weight.sign()
    if kind == "large lower halves":
        weight = torch.randint(-8, 7, weight.shape) * 16 + 15.0
        weight[:, ::32] = -128
    head = head_of(screening, weight.bfloat16())
    params = make_params(1, min_p=1e-30, top_p=0.5)
    off = []
    for _ in range(50):
        hidden = (torch.randn(1, size) / size).bfloat16()
        if kind == "large lower halves":
            hidden = hidden.abs()
        bounds, logits = bounds_of(screening, hidden, head, params), screening.logits(hidden, head)[0]
        below = (bounds - logits).double() / deviation(hidden, head)
        off.append(below[bounds != logits] - 8)
        assert (bounds == logits).sum() <= 16
    share = torch.cat(off)
    assert share.abs().max() < 8, "a logit above its bound, or far below"
    if kind == "normal":  # elsewhere logits of a row are of the same few numbers
        assert abs(share.mean()) < 0.5
        assert 0.8 < share.std() < 1.2


def test_bounds_are_made_from_upper_halves_alone(screening: CpuKernels, make_params: MakeParams) -> None:
    head, hidden = head_of(screening, torch.randn(64, 128).bfloat16()), torch.randn(1, 128).bfloat16()
    params = make_params(1, min_p=1e-30, top_p=0.5)
    bounds = bounds_of(screening, hidden, head, params)
    assert head.lower is not None
    head.lower.random_(0, 256)
    same = bounds_of(screening, hidden, head, params) == bounds
    assert same.view(4, 16).all(1).sum() == 3, "all but the panel of the largest, whose logits are there"


def test_screened_draws_are_recorded(screening: CpuKernels, make_params: MakeParams) -> None:
    head = head_of(screening, torch.randn(2048, 96).bfloat16())
    hidden = torch.randn(1, 96).bfloat16()
    params = make_params(1, temperature=0.0)

    def run() -> Tensor:
        return screening.sample(
            screening.logits(hidden, head, screening.screen(hidden, head, params)), params
        )

    replay = screening.capture(run)
    for temperature, top_k in ((0.0, 0), (1.0, 20), (1.0, 0), (0.0, 0)):
        hidden.copy_(torch.randn(1, 96))
        params.temperature.fill_(temperature)
        params.top_k.fill_(top_k)
        assert torch.equal(replay(), screening.sample(screening.logits(hidden, head), params))
