"""Paged attention against a loop over tokens and heads, in float64."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from pageant.kernels.base import AttentionBatch, Kernels

BatchMaker = Callable[..., AttentionBatch]

HEADS = st.sampled_from([(1, 1), (4, 2), (6, 3), (5, 1), (7, 7), (9, 3)])
WINDOWS = st.one_of(st.none(), st.integers(1, 40))
SOFTCAPS = st.one_of(st.none(), st.floats(0.5, 30))


@st.composite
def sequences(draw: st.DrawFn) -> list[tuple[int, int]]:
    """(new tokens, context) of up to six sequences; block edges and single tokens come up often."""
    lengths = []
    for _ in range(draw(st.integers(0, 6))):
        context = draw(st.one_of(st.sampled_from([1, 2, 4, 8, 16, 17]), st.integers(1, 60)))
        new = draw(st.one_of(st.just(1), st.just(context), st.integers(0, context)))
        lengths.append((new, context))
    return lengths


def naive(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    batch: AttentionBatch,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
) -> Tensor:
    output = torch.empty_like(query, dtype=torch.float64)
    block_size, groups = keys.shape[2], query.shape[1] // keys.shape[1]
    for sequence, context in enumerate(batch.context_lengths.tolist()):
        start, stop = batch.query_starts[sequence : sequence + 2].tolist()
        for token in range(start, stop):
            position = int(batch.positions[token])
            oldest = 0 if window is None else max(0, position - window + 1)
            entries = [entry for entry in range(context) if oldest <= entry <= position]
            for head in range(query.shape[1]):
                places = [
                    (
                        int(batch.block_tables[sequence, entry // block_size]),
                        head // groups,
                        entry % block_size,
                    )
                    for entry in entries
                ]
                scores = torch.stack([keys[place].double() @ query[token, head].double() for place in places])
                scores = scores * scale
                if softcap is not None:
                    scores = softcap * torch.tanh(scores / softcap)
                rows = torch.stack([values[place].double() for place in places])
                output[token, head] = scores.softmax(0) @ rows
    return output


def make_inputs(
    batch: AttentionBatch,
    heads: tuple[int, int],
    head_dim: int,
    block_size: int,
    num_blocks: int,
    generator: torch.Generator,
    dtype: torch.dtype = torch.float32,
) -> tuple[Tensor, Tensor, Tensor]:
    """A query, and caches that hold NaN wherever no sequence of the batch has written."""
    num_heads, num_kv_heads = heads
    shape = (num_blocks, num_kv_heads, block_size, head_dim)
    keys, values = (torch.randn(shape, generator=generator).to(dtype) for _ in range(2))
    written = torch.zeros(num_blocks, block_size, dtype=torch.bool)
    for table, context in zip(batch.block_tables.tolist(), batch.context_lengths.tolist(), strict=True):
        for entry in range(context):
            written[table[entry // block_size], entry % block_size] = True
    for cache in (keys, values):
        cache.masked_fill_(~written[:, None, :, None], float("nan"))
    query = torch.randn(batch.positions.numel(), num_heads, head_dim, generator=generator).to(dtype)
    return query, keys, values


@settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    lengths=sequences(),
    heads=HEADS,
    block_size=st.sampled_from([1, 4, 16]),
    window=WINDOWS,
    softcap=SOFTCAPS,
    seed=st.integers(0, 99),
)
def test_any_batch_attends_as_the_naive_loop_does(
    backend: Kernels,
    make_batch: BatchMaker,
    lengths: list[tuple[int, int]],
    heads: tuple[int, int],
    block_size: int,
    window: int | None,
    softcap: float | None,
    seed: int,
) -> None:
    generator = torch.Generator().manual_seed(seed)
    num_blocks = 400 // block_size
    batch = make_batch(lengths, block_size, num_blocks, generator)
    query, keys, values = make_inputs(batch, heads, 8, block_size, num_blocks, generator)
    output = backend.paged_attention(query, keys, values, batch, 0.3, window, softcap)
    expected = naive(query, keys, values, batch, 0.3, window, softcap)
    assert output.shape == query.shape and output.dtype == query.dtype
    torch.testing.assert_close(output.double(), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("window", [None, 5])
def test_bfloat16_errs_by_its_own_rounding_only(
    backend: Kernels, make_batch: BatchMaker, window: int | None
) -> None:
    generator = torch.Generator().manual_seed(3)
    batch = make_batch([(1, 33), (9, 20), (1, 4), (16, 16)], 4, 40, generator)
    query, keys, values = make_inputs(batch, (6, 3), 16, 4, 40, generator, torch.bfloat16)
    output = backend.paged_attention(query, keys, values, batch, 0.25, window)
    expected = naive(query, keys, values, batch, 0.25, window)
    assert output.dtype == torch.bfloat16
    torch.testing.assert_close(output.double(), expected, atol=0.02, rtol=0.01)


def test_a_query_cut_from_a_fused_projection_is_read_by_its_strides(
    backend: Kernels, make_batch: BatchMaker
) -> None:
    generator = torch.Generator().manual_seed(4)
    batch = make_batch([(1, 7), (5, 9)], 4, 20, generator)
    query, keys, values = make_inputs(batch, (4, 2), 8, 4, 20, generator)
    fused = torch.cat((query.flatten(1), torch.randn(6, 32)), dim=1)
    view = fused[:, :32].view(6, 4, 8)
    torch.testing.assert_close(
        backend.paged_attention(view, keys, values, batch, 0.3),
        backend.paged_attention(query, keys, values, batch, 0.3),
    )


def test_positions_decide_what_is_seen_wherever_the_slots_are(
    backend: Kernels, make_batch: BatchMaker
) -> None:
    """Candidates for one place in the text share a position, and a text may start anywhere."""
    generator = torch.Generator().manual_seed(6)
    batch = make_batch([(3, 10), (4, 4), (1, 5), (1, 9)], 4, 20, generator)
    batch.positions.copy_(torch.tensor([7, 8, 8, 0, 1, 1, 2, 6, 7]))
    query, keys, values = make_inputs(batch, (2, 1), 8, 4, 20, generator)
    torch.testing.assert_close(
        backend.paged_attention(query, keys, values, batch, 0.3).double(),
        naive(query, keys, values, batch, 0.3),
        atol=1e-5,
        rtol=1e-5,
    )
