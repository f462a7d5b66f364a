"""Attention of sequences with many new tokens: one program for a tall tile of queries.

Dao: FlashAttention-2 (2023), over pages. Tiles are numbered over the whole step, without a table of them.
"""

from __future__ import annotations

import triton
import triton.language as tl

from pageant.kernels.triton.attention_tile import attend, load_masks, load_query, visible_span, with_sink
from pageant.kernels.triton.mathematics import segment_of_tile

__all__ = ["prefill"]


@triton.jit(do_not_specialize=["num_sequences", "window", "table_stride"])
def prefill(
    query,
    keys,
    values,
    output,
    query_starts,
    context_lengths,
    block_tables,
    positions,
    ancestors,
    sinks,
    num_sequences,
    query_stride,
    table_stride,
    factor,
    cap,
    window,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    DIM_TILE: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    ENTRIES: tl.constexpr,
    PARTED: tl.constexpr,
    WINDOWED: tl.constexpr,
    CAPPED: tl.constexpr,
    TREES: tl.constexpr,
    PRECISION: tl.constexpr,
    FORMAT: tl.constexpr,
    SINKS: tl.constexpr,
    SHORT: tl.constexpr,
):
    """Program (tile, key head); sequences of up to SHORT tokens are `decode`'s."""
    TOKENS: tl.constexpr = ROWS // (HEADS // KV_HEADS)
    # The last tiles of a sequence see the most entries, so they are begun first.
    tile = tl.num_programs(0) - 1 - tl.program_id(0)
    sequence, number = segment_of_tile(query_starts, num_sequences, tile, TOKENS)
    begin = tl.load(query_starts + sequence)
    stop = tl.load(query_starts + sequence + 1)
    if (stop - begin <= SHORT) | (begin + number * TOKENS >= stop):
        return
    kv_head = tl.program_id(1)
    queries, places, there, position = load_query(
        query,
        positions,
        begin + number * TOKENS,
        stop,
        kv_head,
        query_stride,
        HEADS,
        KV_HEADS,
        DIM,
        DIM_TILE,
        ROWS,
    )
    context = tl.load(context_lengths + sequence)
    own = context - (stop - begin)
    mask = load_masks(ancestors, begin + number * TOKENS, there, ROWS, HEADS // KV_HEADS, TREES)
    first, last, clear_first, clear_last = visible_span(there, position, mask, context, own, window)
    sums, tops, totals = attend(
        queries,
        position,
        mask,
        positions + begin,
        own,
        keys,
        values,
        block_tables + tl.cast(sequence, tl.int64) * table_stride,
        kv_head,
        first // ENTRIES * ENTRIES,
        last,
        first,
        last,
        clear_first,
        clear_last,
        window,
        factor,
        cap,
        KV_HEADS,
        DIM,
        DIM_TILE,
        BLOCK_SIZE,
        ROWS,
        ENTRIES,
        PARTED,
        WINDOWED,
        CAPPED,
        TREES,
        PRECISION,
        FORMAT,
    )
    if SINKS:
        GROUPS: tl.constexpr = HEADS // KV_HEADS
        head = kv_head * GROUPS + tl.arange(0, ROWS) % GROUPS
        shrink, totals = with_sink(tops, totals, tl.load(sinks + head, mask=there, other=0.0))
        sums = sums * shrink[:, None]
    dim = tl.arange(0, DIM_TILE)
    tl.store(
        output + places[:, None] + dim[None, :],
        (sums / tl.where(there, totals, 1.0)[:, None]).to(output.dtype.element_ty),
        mask=there[:, None] & (dim[None, :] < DIM),
    )
