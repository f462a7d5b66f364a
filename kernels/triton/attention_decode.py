"""Attention of sequences with few new tokens, their contexts split over programs, then merged.

Dao, Haziza, Massa, Sizov: Flash-Decoding for long-context inference (2023). A program streams its share of one
key head's context once, for all query heads that read it and all the new tokens, which fit in one tile.
"""

from __future__ import annotations

import triton
import triton.language as tl

from pageant.kernels.triton.attention_tile import attend, load_masks, load_query, visible_span

__all__ = ["decode", "merge_splits"]


@triton.jit(do_not_specialize=["window"])
def decode(
    query,
    keys,
    values,
    output,
    split_sums,
    split_tops,
    query_starts,
    context_lengths,
    block_tables,
    positions,
    ancestors,
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
    WINDOWED: tl.constexpr,
    CAPPED: tl.constexpr,
    TREES: tl.constexpr,
    PRECISION: tl.constexpr,
    SHORT: tl.constexpr,
    SPLITS: tl.constexpr,
):
    """Program (sequence, key head, split). With one split, writes output [T, H, D]; with more, its part of
    split_sums [S * SHORT, H, SPLITS, D], and of split_tops [S * SHORT, H, SPLITS, 2] the top and the total."""
    sequence = tl.program_id(0)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    begin = tl.load(query_starts + sequence)
    stop = tl.load(query_starts + sequence + 1)
    if (stop == begin) | (stop - begin > SHORT):
        return
    queries, places, there, position = load_query(
        query, positions, begin, stop, kv_head, query_stride, HEADS, KV_HEADS, DIM, DIM_TILE, ROWS
    )
    context = tl.load(context_lengths + sequence)
    own = context - (stop - begin)
    mask = load_masks(ancestors, begin, there, ROWS, HEADS // KV_HEADS, TREES)
    first, last, clear_first, clear_last = visible_span(there, position, mask, context, own, window)
    tiles_begin = first // ENTRIES
    share = tl.cdiv(tl.cdiv(last, ENTRIES) - tiles_begin, SPLITS)
    share_begin = tl.minimum((tiles_begin + split * share) * ENTRIES, last)
    share_stop = tl.minimum((tiles_begin + (split + 1) * share) * ENTRIES, last)
    sums, tops, totals = attend(
        queries,
        position,
        mask,
        positions + begin,
        own,
        keys,
        values,
        block_tables + sequence.to(tl.int64) * table_stride,
        kv_head,
        share_begin,
        share_stop,
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
        WINDOWED,
        CAPPED,
        TREES,
        PRECISION,
    )
    dim = tl.arange(0, DIM_TILE)
    written = there[:, None] & (dim[None, :] < DIM)
    if SPLITS == 1:
        attended = sums / tl.where(there, totals, 1.0)[:, None]
        tl.store(output + places[:, None] + dim[None, :], attended.to(output.dtype.element_ty), mask=written)
    else:
        GROUPS: tl.constexpr = HEADS // KV_HEADS
        row = tl.arange(0, ROWS)
        line = (sequence.to(tl.int64) * SHORT + row // GROUPS) * HEADS + kv_head * GROUPS + row % GROUPS
        line = line * SPLITS + split
        tl.store(split_sums + line[:, None] * DIM + dim[None, :], sums, mask=written)
        tl.store(split_tops + line * 2, tops, mask=there)
        tl.store(split_tops + line * 2 + 1, totals, mask=there)


@triton.jit
def merge_splits(
    split_sums,
    split_tops,
    output,
    query_starts,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    DIM_TILE: tl.constexpr,
    SHORT: tl.constexpr,
    SPLITS: tl.constexpr,
):
    """Program (sequence * SHORT + token, head): one row of output."""
    sequence = tl.program_id(0) // SHORT
    token = tl.program_id(0) % SHORT
    head = tl.program_id(1)
    begin = tl.load(query_starts + sequence)
    length = tl.load(query_starts + sequence + 1) - begin
    if (token >= length) | (length > SHORT):
        return
    dim = tl.arange(0, DIM_TILE)
    line = (tl.program_id(0).to(tl.int64) * HEADS + head) * SPLITS + tl.arange(0, SPLITS)
    tops = tl.load(split_tops + line * 2)
    weights = tl.exp2(tops - tl.max(tops))  # a split with nothing to do has minus infinity, and so 0
    total = tl.sum(weights * tl.load(split_tops + line * 2 + 1))
    sums = tl.load(split_sums + line[:, None] * DIM + dim[None, :], mask=dim[None, :] < DIM, other=0.0)
    merged = tl.sum(sums * weights[:, None], 0) / total
    place = ((begin + token).to(tl.int64) * HEADS + head) * DIM
    tl.store(output + place + dim, merged.to(output.dtype.element_ty), mask=dim < DIM)
