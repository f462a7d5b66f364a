"""Attention of sequences with few new tokens, their contexts split over programs, then merged.

Dao, Haziza, Massa, Sizov: Flash-Decoding for long-context inference (2023). A program streams its share of one
key head's context once, for all query heads that read it and all the new tokens, which fit in one tile.
"""

from __future__ import annotations

import triton
import triton.language as tl

from pageant.kernels.triton.attention_tile import attend, load_masks, load_query, visible_span, with_sink

__all__ = ["decode", "merge_splits"]


@triton.jit(do_not_specialize=["window", "table_stride", "splits"])
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
    sinks,
    query_stride,
    table_stride,
    factor,
    cap,
    window,
    splits,
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
    SPLIT: tl.constexpr,
):
    """Program (sequence, key head, split). Unless SPLIT, writes output [T, H, D]; otherwise its part of
    split_sums [S * SHORT, H, splits, D], and of split_tops [S * SHORT, H, splits, 2] the top and the total."""
    sequence = tl.program_id(0)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    begin = tl.load(query_starts + sequence)
    stop = tl.load(query_starts + sequence + 1)
    context = tl.load(context_lengths + sequence)  # together with those: each would take as long by itself
    if (stop == begin) | (stop - begin > SHORT):
        return
    queries, places, there, position = load_query(
        query, positions, begin, stop, kv_head, query_stride, HEADS, KV_HEADS, DIM, DIM_TILE, ROWS
    )
    own = context - (stop - begin)
    mask = load_masks(ancestors, begin, there, ROWS, HEADS // KV_HEADS, TREES)
    first, last, clear_first, clear_last = visible_span(there, position, mask, context, own, window)
    tiles_begin = first // ENTRIES
    share = tl.cdiv(tl.cdiv(last, ENTRIES) - tiles_begin, splits)
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
        PARTED,
        WINDOWED,
        CAPPED,
        TREES,
        PRECISION,
        FORMAT,
    )
    dim = tl.arange(0, DIM_TILE)
    written = there[:, None] & (dim[None, :] < DIM)
    GROUPS: tl.constexpr = HEADS // KV_HEADS
    row = tl.arange(0, ROWS)
    head = kv_head * GROUPS + row % GROUPS
    if not SPLIT:
        if SINKS:
            shrink, totals = with_sink(tops, totals, tl.load(sinks + head, mask=there, other=0.0))
            sums = sums * shrink[:, None]
        attended = sums / tl.where(there, totals, 1.0)[:, None]
        tl.store(output + places[:, None] + dim[None, :], attended.to(output.dtype.element_ty), mask=written)
    else:
        line = (sequence.to(tl.int64) * SHORT + row // GROUPS) * HEADS + head
        line = line * splits + split
        tl.store(split_sums + line[:, None] * DIM + dim[None, :], sums, mask=written)
        tl.store(split_tops + line * 2, tops, mask=there)
        tl.store(split_tops + line * 2 + 1, totals, mask=there)


@triton.jit(do_not_specialize=["splits"])
def merge_splits(
    split_sums,
    split_tops,
    output,
    query_starts,
    sinks,
    splits,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    DIM_TILE: tl.constexpr,
    SINKS: tl.constexpr,
    SHORT: tl.constexpr,
    PARTS: tl.constexpr,
):
    """Program (sequence * SHORT + token, head): one row of output, from PARTS splits at a time."""
    sequence = tl.program_id(0) // SHORT
    token = tl.program_id(0) % SHORT
    head = tl.program_id(1)
    begin = tl.load(query_starts + sequence)
    length = tl.load(query_starts + sequence + 1) - begin
    if (token >= length) | (length > SHORT):
        return
    dim = tl.arange(0, DIM_TILE)
    line = (tl.program_id(0).to(tl.int64) * HEADS + head) * splits
    top = tl.full((), float("-inf"), dtype=tl.float32)
    total = tl.full((), 0.0, dtype=tl.float32)
    merged = tl.zeros([DIM_TILE], dtype=tl.float32)
    for start in range(0, splits, PARTS):
        part = start + tl.arange(0, PARTS)
        there = part < splits
        tops = tl.load(split_tops + (line + part) * 2, mask=there, other=float("-inf"))
        risen = tl.maximum(top, tl.max(tops))
        # A split with nothing to do has minus infinity; while all had, so has the top.
        base = tl.where(risen == float("-inf"), 0.0, risen)
        weights, shrink = tl.exp2(tops - base), tl.exp2(top - base)
        totals = tl.load(split_tops + (line + part) * 2 + 1, mask=there, other=0.0)
        total = total * shrink + tl.sum(weights * totals)
        there_of = there[:, None] & (dim[None, :] < DIM)
        sums = tl.load(split_sums + (line + part)[:, None] * DIM + dim[None, :], mask=there_of, other=0.0)
        merged = merged * shrink + tl.sum(sums * weights[:, None], 0)
        top = risen
    if SINKS:
        shrink, total = with_sink(top, total, tl.load(sinks + head))
        merged = merged * shrink
    merged = merged / total
    place = ((begin + token).to(tl.int64) * HEADS + head) * DIM
    tl.store(output + place + dim, merged.to(output.dtype.element_ty), mask=dim < DIM)
