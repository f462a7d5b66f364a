"""Attention over pages beside the reference, over drawn batches. (The interpreter's tiles are 16 by 16.)"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from pageant.kernels.base import AttentionBatch, Kernels

from .conftest import DTYPES

BatchMaker = Callable[..., AttentionBatch]

drawn = settings(
    max_examples=18,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
HEADS = st.sampled_from([(1, 1), (4, 2), (6, 2), (5, 1), (3, 3)])
HEAD_DIMS = st.sampled_from([16, 32, 24, 40])
WINDOWS = st.one_of(st.none(), st.integers(1, 70))
SOFTCAPS = st.sampled_from([None, None, 0.7, 30.0])


@st.composite
def sequences(draw: st.DrawFn, longest_new: int) -> list[tuple[int, int]]:
    """(new tokens, context) of up to four sequences; the edges of blocks, tiles and splits come up often."""
    lengths = []
    for _ in range(draw(st.integers(1, 4))):
        edges = st.sampled_from([1, 15, 16, 17, 64, 65, 128, 129])
        context = draw(st.one_of(edges, st.integers(1, 200)))
        most = min(longest_new, context)
        lengths.append((draw(st.one_of(st.sampled_from([0, 1, most]), st.integers(0, most))), context))
    return lengths


def on_device(batch: AttentionBatch, device: torch.device) -> AttentionBatch:
    values = {field.name: getattr(batch, field.name) for field in fields(batch)}
    return replace(batch, **{n: v.to(device) for n, v in values.items() if isinstance(v, Tensor)}, derived={})


def inputs(
    batch: AttentionBatch,
    heads: tuple[int, int],
    head_dim: int,
    block_size: int,
    dtype: torch.dtype,
    seed: int,
    device: torch.device,
) -> tuple[Tensor, Tensor, Tensor]:
    """A query, and caches that hold NaN wherever no sequence of the batch has written."""
    generator = torch.Generator().manual_seed(seed)
    num_blocks = 800 // block_size
    written = torch.zeros(num_blocks, block_size, dtype=torch.bool)
    for table, context in zip(batch.block_tables.tolist(), batch.context_lengths.tolist(), strict=True):
        for entry in range(context):
            written[table[entry // block_size], entry % block_size] = True
    shape = (num_blocks, heads[1], block_size, head_dim)
    caches = [
        torch.randn(shape, generator=generator).masked_fill(~written[:, None, :, None], float("nan"))
        for _ in range(2)
    ]
    # Cut from a fused projection: the stride of a token is not its size.
    fused = torch.randn(batch.positions.numel(), heads[0] * head_dim + 8, generator=generator)
    query = fused.to(dtype).to(device)[:, : heads[0] * head_dim].unflatten(1, (heads[0], head_dim))
    return query, caches[0].to(dtype).to(device), caches[1].to(dtype).to(device)


def check(
    kernels: Kernels,
    reference: Kernels,
    batch: AttentionBatch,
    heads: tuple[int, int],
    head_dim: int,
    block_size: int,
    window: int | None,
    softcap: float | None,
    dtype: torch.dtype,
    seed: int,
    device: torch.device,
) -> AttentionBatch:
    """Returns the batch as the kernels saw it."""
    query, keys, values = inputs(batch, heads, head_dim, block_size, dtype, seed, device)
    there = on_device(batch, device)
    sinks = torch.randn(heads[0], generator=torch.Generator().manual_seed(seed)) * 5 if seed % 2 else None
    on_it = None if sinks is None else sinks.to(device)
    found = kernels.paged_attention(query, keys, values, there, 0.25, window, softcap, on_it)
    wide = (query.cpu().float(), keys.cpu().float(), values.cpu().float())
    expected = reference.paged_attention(*wide, batch, 0.25, window, softcap, sinks)
    assert found.dtype == dtype and found.shape == query.shape
    error = {torch.float32: 1e-5, torch.float16: 3e-3, torch.bfloat16: 2e-2}[dtype]
    torch.testing.assert_close(found.cpu().float(), expected, atol=error, rtol=error)
    return there


def splits(batch: AttentionBatch) -> int:
    """Return over how many programs a context was split."""
    return max(shape[2] for _, shape, _ in batch.derived)


@drawn
@given(
    lengths=sequences(1),
    heads=HEADS,
    head_dim=HEAD_DIMS,
    block_size=st.sampled_from([4, 16]),
    window=WINDOWS,
    softcap=SOFTCAPS,
    seed=st.integers(0, 99),
    dtype=st.sampled_from(DTYPES),
)
def test_decodes_of_split_contexts(
    triton_kernels: Kernels,
    reference: Kernels,
    make_batch: BatchMaker,
    device: torch.device,
    dtype: torch.dtype,
    lengths: list[tuple[int, int]],
    heads: tuple[int, int],
    head_dim: int,
    block_size: int,
    window: int | None,
    softcap: float | None,
    seed: int,
) -> None:
    batch = make_batch(lengths, block_size, 800 // block_size, torch.Generator().manual_seed(seed))
    check(triton_kernels, reference, batch, heads, head_dim, block_size, window, softcap, dtype, seed, device)


@drawn
@given(
    lengths=sequences(40),
    heads=HEADS,
    head_dim=HEAD_DIMS,
    block_size=st.sampled_from([4, 16]),
    window=WINDOWS,
    softcap=SOFTCAPS,
    seed=st.integers(0, 99),
    dtype=st.sampled_from(DTYPES),
)
def test_prefills_and_what_else_is_in_their_step(
    triton_kernels: Kernels,
    reference: Kernels,
    make_batch: BatchMaker,
    device: torch.device,
    dtype: torch.dtype,
    lengths: list[tuple[int, int]],
    heads: tuple[int, int],
    head_dim: int,
    block_size: int,
    window: int | None,
    softcap: float | None,
    seed: int,
) -> None:
    batch = make_batch(lengths, block_size, 800 // block_size, torch.Generator().manual_seed(seed))
    check(triton_kernels, reference, batch, heads, head_dim, block_size, window, softcap, dtype, seed, device)


def test_a_few_new_tokens_of_each_sequence_are_decoded_together(
    triton_kernels: Kernels, reference: Kernels, make_batch: BatchMaker, device: torch.device
) -> None:
    batch = make_batch([(5, 190), (8, 40), (2, 2), (0, 9)], 16, 50, torch.Generator().manual_seed(0))
    check(triton_kernels, reference, batch, (6, 2), 24, 16, None, None, torch.float32, 0, device)


def test_the_maxima_may_be_larger_than_any_sequence(
    triton_kernels: Kernels, reference: Kernels, make_batch: BatchMaker, device: torch.device
) -> None:
    """Give larger maxima, as in a captured graph: there are more splits than short contexts can use."""
    batch = make_batch([(1, 3), (1, 100)], 16, 50, torch.Generator().manual_seed(0))
    larger = replace(batch, max_context_length=100_000)
    seen = check(triton_kernels, reference, larger, (2, 1), 32, 16, None, None, torch.float32, 0, device)
    assert splits(seen) > -(-100 // 16), "there are more splits than tiles"


@pytest.mark.parametrize("window", [None, 30])
def test_positions_decide_what_is_seen_wherever_the_slots_are(
    triton_kernels: Kernels,
    reference: Kernels,
    make_batch: BatchMaker,
    device: torch.device,
    window: int | None,
) -> None:
    batch = make_batch([(3, 110), (40, 40), (1, 5)], 16, 50, torch.Generator().manual_seed(0))
    batch.positions[:3] = torch.tensor([107, 108, 108])
    batch.positions[3:43] = torch.arange(40) // 2
    check(triton_kernels, reference, batch, (4, 2), 16, 16, window, None, torch.float32, 0, device)


@pytest.mark.parametrize("window", [None, 30])
@pytest.mark.parametrize("new", [6, 20], ids=["decoded", "prefilled"])
def test_trees_of_drafts_see_their_ancestors_and_all_before_them(
    triton_kernels: Kernels,
    reference: Kernels,
    make_batch: BatchMaker,
    device: torch.device,
    new: int,
    window: int | None,
) -> None:
    """Two sequences are trees, with siblings at one depth; two are not, in the same step."""
    batch = make_batch([(new, 90), (1, 50), (new, new), (3, 40)], 16, 50, torch.Generator().manual_seed(0))
    ancestors = torch.zeros(2 * new + 4, dtype=torch.int64)
    generator = torch.Generator().manual_seed(1)
    for start, before in ((0, 90 - new), (new + 1, 0)):
        for index in range(new):
            parent = int(torch.randint(-1, index, (1,), generator=generator)) if index else -1
            above = ancestors[start + parent] if parent >= 0 else 0
            ancestors[start + index] = above | (1 << index)
            batch.positions[start + index] = before + int(ancestors[start + index]).bit_count() - 1
    assert len(set(batch.positions[:new].tolist())) < new, "there are siblings"
    tree = replace(batch, ancestors=ancestors)
    check(triton_kernels, reference, tree, (6, 2), 24, 16, window, None, torch.float32, 0, device)
