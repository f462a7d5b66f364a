"""The reference's tokens, exactly."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pageant.kernels.base import Kernels, SamplingTensors, TokenMasks
from pageant.kernels.sampling import gumbel_noise
from pageant.kernels.triton import sampling

ParamsMaker = Callable[..., SamplingTensors]


def moved(params: SamplingTensors, device: torch.device) -> SamplingTensors:
    columns = {
        name: value.to(device) for name, value in vars(params).items() if isinstance(value, torch.Tensor)
    }
    return replace(params, **columns)


@settings(
    max_examples=25,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    rows=st.integers(0, 4),
    vocab_size=st.one_of(st.sampled_from([1, 255, 256, 257]), st.integers(1, 1200)),
    scale=st.sampled_from([0.0, 0.3, 3.0, 30.0]),
    seed=st.integers(0, 999),
)
def test_the_same_tokens_are_drawn(
    triton_kernels: Kernels,
    reference: Kernels,
    make_draws: Callable[..., tuple[torch.Tensor, SamplingTensors]],
    device: torch.device,
    rows: int,
    vocab_size: int,
    scale: float,
    seed: int,
) -> None:
    logits, params = make_draws(rows, vocab_size, scale, seed)
    found = triton_kernels.sample(logits.to(device), moved(params, device)).cpu()
    assert torch.equal(found, reference.sample(logits, params))


@pytest.mark.parametrize(("top_k", "top_p", "kept"), [(7, 1.0, 7), (0, 0.2, 5), (3, 0.9, 3)])
def test_the_filters_keep_what_they_promise(
    triton_kernels: Kernels,
    make_params: ParamsMaker,
    device: torch.device,
    top_k: int,
    top_p: float,
    kept: int,
) -> None:
    """Falling logits in a known shuffle: over many seeds, exactly the first `kept` of them are drawn."""
    vocab_size, rows = 250, 24
    order = torch.randperm(vocab_size, generator=torch.Generator().manual_seed(1))
    logits = torch.empty(vocab_size).index_copy_(0, order, torch.arange(vocab_size) * -0.05)
    params = make_params(rows, top_k=top_k, top_p=top_p, seed=torch.arange(rows), temperature=0.99)
    tokens = triton_kernels.sample(logits.expand(rows, -1).contiguous().to(device), moved(params, device))
    assert set(tokens.tolist()) == set(order[:kept].tolist())


def test_the_estimate_of_the_noise_is_within_its_margin(
    triton_kernels: Kernels, make_params: ParamsMaker, device: torch.device
) -> None:
    """All scores nearly tie, so that only the last bits of the noise say which is first."""
    vocab_size, rows = 250, 2
    params = make_params(rows, seed=torch.arange(rows) * 77)
    noise = gumbel_noise(params.seed, params.sample, params.position, vocab_size)
    logits = noise.amax(dim=-1, keepdim=True) - noise
    expected = ((logits - logits.amax(dim=-1, keepdim=True)) + noise).argmax(dim=-1)
    assert torch.equal(triton_kernels.sample(logits.to(device), moved(params, device)).cpu(), expected)


class Spy:
    """Launches a kernel, and keeps the arguments of the last launch."""

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def launch(*arguments: Any, **options: Any) -> None:
            self._kernel[grid](*arguments, **options)
            self.arguments = dict(zip(self._kernel.arg_names, arguments, strict=False)) | options

        return launch

    def ways(self) -> set[str]:
        """Return what the rows were settled by."""
        found = self.arguments
        far = found["counters"][:, 1]
        return {
            "near" if settled else "far" if 0 < count <= found["FAR"] else "row"
            for settled, count in zip(found["settled"].tolist(), far.tolist(), strict=True)
        }


@pytest.mark.parametrize(
    ("scale", "top_k", "top_p", "min_p", "way"),
    [
        pytest.param(3.0, 5, 1.0, 0.0, "near", id="few"),
        pytest.param(3.0, 20, 0.9, 0.0, "near", id="few, and a nucleus among them"),
        pytest.param(30.0, 0, 0.9, 0.0, "near", id="a small nucleus"),
        pytest.param(1.0, 0, 0.9, 0.6, "near", id="a nucleus of what min_p leaves"),
        pytest.param(0.05, 0, 0.3, 0.0, "far", id="a large nucleus"),
        pytest.param(3.0, 70, 0.99, 0.0, "far", id="more than segments are looked for"),
        pytest.param(0.0, 0, 0.5, 0.0, "row", id="a nucleus of ties"),
        pytest.param(0.0, 7, 0.5, 0.0, "row", id="ties of the k-th"),
    ],
)
def test_each_way_to_filter_draws_the_same_tokens(
    triton_kernels: Kernels,
    reference: Kernels,
    make_params: ParamsMaker,
    device: torch.device,
    monkeypatch: pytest.MonkeyPatch,
    scale: float,
    top_k: int,
    top_p: float,
    min_p: float,
    way: str,
) -> None:
    rows, vocab_size = 3, (1000 if scale else 1100) if device.type == "cpu" else 151_936
    logits = scale * torch.randn(rows, vocab_size, generator=torch.Generator().manual_seed(3))
    params = make_params(rows, top_k=top_k, top_p=top_p, min_p=min_p, seed=torch.arange(rows))
    spy = Spy(sampling.settle)
    monkeypatch.setattr(sampling, "settle", spy)
    found = triton_kernels.sample(logits.to(device), moved(params, device)).cpu()
    assert torch.equal(found, reference.sample(logits, params))
    if device.type == "cpu":  # where it is known how many tokens each way takes
        assert spy.ways() == {way}


def test_rows_without_filters_draw_the_same_when_that_is_said(
    triton_kernels: Kernels, reference: Kernels, make_params: ParamsMaker, device: torch.device
) -> None:
    rows, vocab_size = 5, 700
    logits = torch.randn(rows, vocab_size, generator=torch.Generator().manual_seed(5))
    temperature, min_p = torch.tensor([0.0, 1.0, 0.7, 3.0, 1.0]), torch.tensor([0.0, 0.0, 0.1, 0.3, 1.0])
    params = make_params(rows, seed=torch.arange(rows), temperature=temperature, min_p=min_p)
    expected = reference.sample(logits.clone(), params)
    for filters in (False, True):
        said = moved(replace(params, filters=filters), device)
        assert torch.equal(triton_kernels.sample(logits.to(device), said).cpu(), expected)


@pytest.mark.parametrize("vocab_size", [1, 31, 257, 700])
def test_masks_are_applied_to_their_rows_alone(
    triton_kernels: Kernels,
    reference: Kernels,
    make_params: ParamsMaker,
    device: torch.device,
    vocab_size: int,
) -> None:
    generator = torch.Generator().manual_seed(vocab_size)
    logits = torch.randn(4, vocab_size, generator=generator)
    rows = torch.tensor([2, 0])
    words = -(-vocab_size // 32)
    bits = torch.randint(-(2**31), 2**31, (2, words), generator=generator).int()
    bits[:, 0] |= 1  # something is allowed
    params = make_params(4, seed=torch.arange(4))
    expected, mine = logits.clone(), logits.to(device)
    tokens = reference.sample(expected, params, TokenMasks(rows, bits))
    masks = TokenMasks(rows.to(device), bits.to(device))
    assert torch.equal(triton_kernels.sample(mine, moved(params, device), masks).cpu(), tokens)
    assert torch.equal(mine.cpu(), expected)
