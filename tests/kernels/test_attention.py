"""Paged attention against dense attention under a mask that is written out, in float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

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
HEAD_DIMS = st.sampled_from([1, 7, 8, 16, 31, 32, 33, 40, 64, 65, 128])
BLOCK_SIZES = st.sampled_from([1, 3, 4, 16, 24])


drawn = settings(
    max_examples=60,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@st.composite
def sequences(draw: st.DrawFn) -> list[tuple[int, int]]:
    """(new tokens, context) of up to six sequences; block edges, single tokens and none come up often."""
    lengths = []
    for _ in range(draw(st.integers(0, 6))):
        edges = st.sampled_from([1, 2, 4, 8, 16, 17, 24, 48, 63, 64, 65])
        context = draw(st.one_of(edges, st.integers(1, 60), st.sampled_from([511, 512, 513, 1100])))
        new = draw(
            st.one_of(st.just(0), st.just(1), st.just(min(context, 70)), st.integers(0, min(context, 70)))
        )
        lengths.append((new, context))
    return lengths


# Each node's parent among those before it, or none: what a drafter proposes after the text so far.
trees = st.integers(1, 64).flatmap(
    lambda count: st.tuples(
        *(st.one_of(st.none(), st.integers(0, i - 1) if i else st.none()) for i in range(count))
    )
)


def path(parents: tuple[int | None, ...], node: int) -> list[int]:
    """The nodes from a root to `node`."""
    parent = parents[node]
    return [*(path(parents, parent) if parent is not None else []), node]


def with_trees(batch: AttentionBatch, drafts: dict[int, tuple[int | None, ...]]) -> AttentionBatch:
    """The batch with the tokens of some sequences as trees."""
    ancestors, positions = torch.zeros_like(batch.positions), batch.positions.clone()
    for sequence, parents in drafts.items():
        start, stop = batch.query_starts[sequence : sequence + 2].tolist()
        assert stop - start == len(parents)
        text = int(batch.context_lengths[sequence]) - len(parents)
        for node in range(len(parents)):
            ancestors[start + node] = sum(torch.tensor(1) << above for above in path(parents, node))
            positions[start + node] = text + len(path(parents, node)) - 1
    return replace(batch, positions=positions, ancestors=ancestors, derived={})


def seen(batch: AttentionBatch, sequence: int, window: int | None) -> Tensor:
    """Bool [new tokens, context], by the docstring of AttentionBatch."""
    start, stop = batch.query_starts[sequence : sequence + 2].tolist()
    positions, entries = batch.positions[start:stop], torch.arange(int(batch.context_lengths[sequence]))
    own = len(entries) - len(positions)
    mask = entries <= positions[:, None]
    places = entries.repeat(len(positions), 1)
    for token in range(len(positions)):
        named = 0 if batch.ancestors is None else int(batch.ancestors[start + token])
        if named:
            mask[token] = torch.tensor([entry < own or bool(named >> (entry - own) & 1) for entry in entries])
            places[token, own:] = positions
    return mask if window is None else mask & (places > positions[:, None] - window)


def dense(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    batch: AttentionBatch,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    output = torch.empty_like(query, dtype=torch.float64)
    block_size, groups = keys.shape[2], query.shape[1] // keys.shape[1]
    for sequence, context in enumerate(batch.context_lengths.tolist()):
        start, stop = batch.query_starts[sequence : sequence + 2].tolist()
        entries = torch.arange(context)
        blocks = batch.block_tables[sequence].long()[entries // block_size]
        key, value = (
            cache[blocks, :, entries % block_size].double().repeat_interleave(groups, dim=1)
            for cache in (keys, values)
        )  # [context, H, D]
        scores = torch.einsum("thd,chd->htc", query[start:stop].double(), key) * scale
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        scores = scores.masked_fill(~seen(batch, sequence, window), float("-inf"))
        if sinks is not None:
            scores = torch.cat((scores, sinks.double()[:, None, None].expand(*scores.shape[:2], 1)), dim=-1)
        weights = scores.softmax(-1)[..., :context]
        output[start:stop] = torch.einsum("htc,chd->thd", weights, value)
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


def make_sinks(are_there: bool, heads: tuple[int, int], generator: torch.Generator) -> Tensor | None:
    """Scores that weigh nothing, as much as a context, or as good as all."""
    return torch.randn(heads[0], generator=generator) * 20 if are_there else None


def blocks_for(lengths: list[tuple[int, int]], block_size: int) -> int:
    """Return as many blocks as hold the contexts, and some that are no one's."""
    return sum(-(-context // block_size) for _, context in lengths) + 5


@drawn
@given(
    lengths=sequences(),
    heads=HEADS,
    head_dim=HEAD_DIMS,
    block_size=BLOCK_SIZES,
    window=WINDOWS,
    softcap=SOFTCAPS,
    with_sinks=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.float32, torch.bfloat16, torch.float16]),
    seed=st.integers(0, 99),
)
def test_any_batch_attends_as_dense_attention_does(
    backend: Kernels,
    make_batch: BatchMaker,
    lengths: list[tuple[int, int]],
    heads: tuple[int, int],
    head_dim: int,
    block_size: int,
    window: int | None,
    softcap: float | None,
    with_sinks: bool,
    dtype: torch.dtype,
    seed: int,
) -> None:
    generator = torch.Generator().manual_seed(seed)
    num_blocks = blocks_for(lengths, block_size)
    batch = make_batch(lengths, block_size, num_blocks, generator)
    query, keys, values = make_inputs(batch, heads, head_dim, block_size, num_blocks, generator, dtype)
    scale = head_dim**-0.5
    sinks = make_sinks(with_sinks, heads, generator)
    output = backend.paged_attention(query, keys, values, batch, scale, window, softcap, sinks)
    expected = dense(query, keys, values, batch, scale, window, softcap, sinks)
    assert output.shape == query.shape and output.dtype == query.dtype
    step = 1e-5 if dtype == torch.float32 else 0.02
    torch.testing.assert_close(output.double(), expected, atol=step, rtol=step)


@drawn
@given(
    drafts=st.lists(trees, min_size=1, max_size=3),
    text=st.one_of(st.sampled_from([0, 1, 15, 16, 63, 64, 500, 512]), st.integers(0, 70)),
    heads=HEADS,
    block_size=BLOCK_SIZES,
    window=WINDOWS,
    softcap=SOFTCAPS,
    with_sinks=st.booleans(),
    seed=st.integers(0, 99),
)
def test_trees_of_drafts_attend_to_the_text_and_to_their_ancestors(
    backend: Kernels,
    make_batch: BatchMaker,
    drafts: list[tuple[int | None, ...]],
    text: int,
    heads: tuple[int, int],
    block_size: int,
    window: int | None,
    softcap: float | None,
    with_sinks: bool,
    seed: int,
) -> None:
    """Sequences without a tree are among them: a decode, a chunk and one with nothing to do."""
    generator = torch.Generator().manual_seed(seed)
    lengths = [(len(parents), text + index + len(parents)) for index, parents in enumerate(drafts)]
    lengths[1:1] = [(1, 33), (70, 90), (0, 9)]
    num_blocks = blocks_for(lengths, block_size)
    of_sequence = {index if index == 0 else index + 3: parents for index, parents in enumerate(drafts)}
    batch = with_trees(make_batch(lengths, block_size, num_blocks, generator), of_sequence)
    query, keys, values = make_inputs(batch, heads, 8, block_size, num_blocks, generator)
    sinks = make_sinks(with_sinks, heads, generator)
    output = backend.paged_attention(query, keys, values, batch, 0.3, window, softcap, sinks)
    expected = dense(query, keys, values, batch, 0.3, window, softcap, sinks)
    torch.testing.assert_close(output.double(), expected, atol=1e-5, rtol=1e-5)


@drawn
@given(parents=trees, text=st.integers(0, 40), window=WINDOWS, seed=st.integers(0, 99))
def test_every_path_of_a_tree_ends_as_the_same_plain_sequence_does(
    backend: Kernels,
    make_batch: BatchMaker,
    parents: tuple[int | None, ...],
    text: int,
    window: int | None,
    seed: int,
) -> None:
    generator = torch.Generator().manual_seed(seed)
    shape = (2, text + len(parents), 2, 8)
    key, value = torch.randn(shape, generator=generator).unbind()  # of the text, then of each node
    query = torch.randn(len(parents), 4, 8, generator=generator)

    def attend(entries: list[int], new: list[int], tree: bool) -> Tensor:
        batch = make_batch([(len(new), len(entries))], 4, len(entries) // 4 + 3, generator)
        caches = torch.full((2, len(entries) // 4 + 3, 2, 4, 8), float("nan")).unbind()
        for place, entry in enumerate(entries):
            block = int(batch.block_tables[0, place // 4])
            for cache, rows in zip(caches, (key, value), strict=True):
                cache[block, :, place % 4] = rows[entry]
        batch = with_trees(batch, {0: parents}) if tree else batch
        return backend.paged_attention(query[new], *caches, batch, 0.3, window)

    context, nodes = list(range(text)), list(range(len(parents)))
    together = attend(list(range(text + len(parents))), nodes, tree=True)
    for node in {0, len(parents) // 2, len(parents) - 1}:
        line = path(parents, node)
        alone = attend(context + [text + above for above in line], line, tree=False)
        torch.testing.assert_close(together[node], alone[-1], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("window", [None, 7])
@pytest.mark.parametrize("count", [1, 3, 40, 64])
def test_a_tree_that_is_a_chain_is_causal_bit_by_bit(
    backend: Kernels, make_batch: BatchMaker, dtype: torch.dtype, window: int | None, count: int
) -> None:
    generator = torch.Generator().manual_seed(8)
    lengths = [(count, 530 + count), (1, 20), (9, 9)]
    causal = make_batch(lengths, 16, 60, generator)
    query, keys, values = make_inputs(causal, (4, 2), 40, 16, 60, generator, dtype)
    chains = with_trees(causal, {0: (None, *range(count - 1)), 2: (None, *range(8))})
    assert torch.equal(chains.positions, causal.positions)
    found, expected = (
        backend.paged_attention(query, keys, values, batch, 0.2, window) for batch in (chains, causal)
    )
    if backend.name == "cpu":
        assert torch.equal(found, expected)
    else:  # torch chooses another algorithm where there is a mask
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("window", [None, 5])
def test_bfloat16_errs_by_its_own_rounding_only(
    backend: Kernels, make_batch: BatchMaker, window: int | None
) -> None:
    generator = torch.Generator().manual_seed(3)
    batch = make_batch([(1, 33), (9, 20), (1, 4), (16, 16)], 4, 40, generator)
    query, keys, values = make_inputs(batch, (6, 3), 16, 4, 40, generator, torch.bfloat16)
    output = backend.paged_attention(query, keys, values, batch, 0.25, window)
    expected = dense(query, keys, values, batch, 0.25, window)
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
        dense(query, keys, values, batch, 0.3),
        atol=1e-5,
        rtol=1e-5,
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_sink_that_weighs_nothing_or_all_leaves_everything_or_nothing(
    backend: Kernels, make_batch: BatchMaker, dtype: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(5)
    batch = make_batch([(1, 700), (9, 20), (1, 4), (70, 600)], 4, 400, generator)
    query, keys, values = make_inputs(batch, (4, 2), 16, 4, 400, generator, dtype)
    sinks = torch.tensor([float("-inf"), -1e30, 1e30, 300.0])
    plain = backend.paged_attention(query, keys, values, batch, 0.25)
    output = backend.paged_attention(query, keys, values, batch, 0.25, sinks=sinks)
    step = 1e-5 if dtype == torch.float32 else 0.02
    torch.testing.assert_close(output[:, :2], plain[:, :2], atol=step, rtol=step)
    assert torch.equal(output[:, 2:], torch.zeros_like(output[:, 2:]))
