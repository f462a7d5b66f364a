"""Writes into the cache, and moves of blocks, beside the reference: bit by bit."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from pageant.kernels.base import Kernels

Numbers = Callable[..., torch.Tensor]


@pytest.mark.parametrize(("tokens", "heads", "head_dim"), [(0, 1, 8), (7, 3, 24), (1, 2, 16)])
def test_what_is_written_and_nothing_else(
    triton_kernels: Kernels,
    reference: Kernels,
    numbers: Numbers,
    dtype: torch.dtype,
    tokens: int,
    heads: int,
    head_dim: int,
) -> None:
    key = numbers(tokens, heads, head_dim, dtype=dtype, seed=1, spare=3)
    value = numbers(tokens, heads, head_dim, dtype=dtype, seed=2, spare=5)
    slots = torch.randperm(40, generator=torch.Generator().manual_seed(0))[:tokens].to(key.device)
    written = []
    for kernels in (triton_kernels, reference):
        caches = [torch.full((10, heads, 4, head_dim), 7.0, dtype=dtype, device=key.device) for _ in "kv"]
        kernels.write_kv(key, value, *caches, slots)
        written.append(caches)
    for ours, theirs in zip(*written, strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize(
    ("sources", "destinations"), [([], []), ([3], [8]), ([0, 1, 2, 3], [1, 2, 3, 0]), ([5, 5], [0, 9])]
)
def test_moves_read_before_they_write(
    triton_kernels: Kernels,
    reference: Kernels,
    numbers: Numbers,
    dtype: torch.dtype,
    sources: list[int],
    destinations: list[int],
) -> None:
    layers = [
        tuple(numbers(10, 2, 4, 250, dtype=dtype, seed=2 * layer + part) for part in range(2))
        for layer in range(3)
    ]
    copies = [tuple(cache.clone() for cache in layer) for layer in layers]
    places = [
        torch.tensor(list_, dtype=torch.int64, device=layers[0][0].device)
        for list_ in (sources, destinations)
    ]
    triton_kernels.move_kv(layers, *places)
    reference.move_kv(copies, *places)
    for ours, theirs in zip(layers, copies, strict=True):
        assert torch.equal(ours[0], theirs[0]) and torch.equal(ours[1], theirs[1])
