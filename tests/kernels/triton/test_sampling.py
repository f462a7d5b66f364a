"""The reference's tokens, exactly."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pageant.kernels.base import Kernels, SamplingTensors
from pageant.kernels.sampling import gumbel_noise

ParamsMaker = Callable[..., SamplingTensors]


def moved(params: SamplingTensors, device: torch.device) -> SamplingTensors:
    return SamplingTensors(**{name: value.to(device) for name, value in vars(params).items()})


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
    vocab_size, rows = 250, 40
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
