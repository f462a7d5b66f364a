"""New heads beside the reference: norms, rotation, and the write into the cache."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from pageant.kernels.base import HeadNorms, Kernels

Numbers = Callable[..., torch.Tensor]
# tokens, heads, rotary_dim (None: nothing is turned), head_dim
SHAPES = [
    (0, (1, 1), 8, 8),
    (3, (9, 3), 16, 24),
    (5, (4, 2), 32, 32),
    (2, (1, 10), 6, 7),
    (2, (3, 1), None, 9),
]


@pytest.mark.parametrize("norm", [None, "rms", "wide"])
@pytest.mark.parametrize(("tokens", "heads", "rotary_dim", "head_dim"), SHAPES)
def test_new_heads_are_normalised_turned_and_written(
    triton_kernels: Kernels,
    reference: Kernels,
    numbers: Numbers,
    assert_near: Callable[..., None],
    dtype: torch.dtype,
    tokens: int,
    heads: tuple[int, int],
    rotary_dim: int | None,
    head_dim: int,
    norm: str | None,
) -> None:
    sizes = [heads[0] * head_dim, heads[1] * head_dim, heads[1] * head_dim]
    fused = numbers(tokens, sum(sizes), dtype=dtype, seed=1, spare=3)
    table = None if rotary_dim is None else numbers(50, rotary_dim, dtype=torch.float32, seed=2)
    positions = (torch.arange(tokens, device=fused.device) * 7 + 3) % 50
    slots = torch.randperm(40, generator=torch.Generator().manual_seed(0))[:tokens].to(fused.device)
    norms = None
    if norm is not None:
        weights = numbers(2, head_dim, dtype=torch.float32 if norm == "wide" else dtype, seed=3)
        norms = HeadNorms(query=weights[0], key=weights[1], eps=1e-2, wide=norm == "wide")
    results = []
    for kernels in (triton_kernels, reference):
        query, key, value = (part.unflatten(1, (-1, head_dim)) for part in fused.clone().split(sizes, dim=1))
        caches = [
            torch.full((10, heads[1], 4, head_dim), 7.0, dtype=dtype, device=fused.device) for _ in "kv"
        ]
        kernels.rope_and_write_kv(query, key, value, table, positions, *caches, slots, norms)
        results.append((query, *caches))
    for ours, theirs in zip(*results, strict=True):
        assert_near(ours, theirs, 4)


@pytest.mark.parametrize(("tokens", "heads", "rotary_dim", "head_dim"), SHAPES[:-1])
def test_rope_turns_both_in_place(
    triton_kernels: Kernels,
    reference: Kernels,
    numbers: Numbers,
    assert_near: Callable[..., None],
    dtype: torch.dtype,
    tokens: int,
    heads: tuple[int, int],
    rotary_dim: int,
    head_dim: int,
) -> None:
    fused = numbers(tokens, sum(heads) * head_dim, dtype=dtype, seed=1, spare=3)
    table = numbers(50, rotary_dim, dtype=torch.float32, seed=2)
    positions = (torch.arange(tokens, device=fused.device) * 7 + 3) % 50
    turned = []
    for kernels in (triton_kernels, reference):
        query, key = fused.clone().split([heads[0] * head_dim, heads[1] * head_dim], dim=1)
        kernels.rope(query.unflatten(1, (-1, head_dim)), key.unflatten(1, (-1, head_dim)), table, positions)
        turned.append((query, key))
    for ours, theirs in zip(*turned, strict=True):
        assert_near(ours, theirs, 4)
