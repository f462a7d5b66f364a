"""Tile of query rows against a span of one sequence's context, which both attention kernels compute.

A row of the tile is one query head of one token: the heads that share a key head stand beside each other, so
that each key is loaded once for all of them. The softmax is online (Milakov, Gimelshein, 2018; Dao et al.:
FlashAttention, 2022), in powers of two. Spans are taken in up to three parts, so that only the entries at the
edges of what is visible are compared with positions at all.
"""

from __future__ import annotations

import triton
import triton.language as tl

from pageant.kernels.triton.kv_codes import numbers, row_place, scale_places
from pageant.kernels.triton.mathematics import tanh

__all__ = ["attend", "load_masks", "load_query", "visible_span", "with_sink"]


@triton.jit
def load_query(
    query,
    positions,
    begin,
    stop,
    kv_head,
    query_stride,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    DIM_TILE: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Tokens begin to stop of the step, as far as they fit: (queries [ROWS, DIM_TILE], offsets of the rows in
    an output [T, H, D], which rows there are, their positions, -1 where there is none)."""
    GROUPS: tl.constexpr = HEADS // KV_HEADS
    row = tl.arange(0, ROWS)
    dim = tl.arange(0, DIM_TILE)
    token = begin + row // GROUPS
    head = kv_head * GROUPS + row % GROUPS
    there = (token < stop) & (row // GROUPS < ROWS // GROUPS)
    position = tl.load(positions + token, mask=there, other=-1).to(tl.int32)
    offsets = token.to(tl.int64) * query_stride + head * DIM
    queries = tl.load(
        query + offsets[:, None] + dim[None, :], mask=there[:, None] & (dim[None, :] < DIM), other=0.0
    )
    return queries, (token.to(tl.int64) * HEADS + head) * DIM, there, position


@triton.jit
def load_masks(ancestors, begin, there, ROWS: tl.constexpr, GROUPS: tl.constexpr, TREES: tl.constexpr):
    """The rows' masks of ancestors, 0 where there is none."""
    token = begin + tl.arange(0, ROWS) // GROUPS
    return tl.load(ancestors + token, mask=there, other=0) if TREES else tl.zeros([ROWS], dtype=tl.int64)


@triton.jit
def with_sink(tops, totals, sink):
    """Return by what rows' sums are multiplied, and the totals that they are then divided by: both of tops' shape.

    A sink is a score that has a weight and no value. Tops and totals are `attend`'s: in powers of two, and minus
    infinity where a row has seen nothing."""
    sink *= 1.4426950408889634  # log2(e)
    risen = tl.maximum(tops, sink)
    base = tl.where(risen == float("-inf"), 0.0, risen)
    shrink = tl.exp2(tops - base)
    return shrink, totals * shrink + tl.exp2(sink - base)


@triton.jit
def visible_span(there, position, mask, context, own, window):
    """The entries that some row sees, [first, last), and those that all rows see, [clear_first, clear_last).

    The step's own entries begin at `own`. In a tree, each of them is seen by who names it, and all before."""
    lowest = tl.min(tl.where(there, position, 1 << 30))
    highest = tl.max(position)
    first = tl.maximum(lowest - window + 1, 0)
    last = tl.max(tl.where(mask != 0, context, position + 1))
    clear_last = tl.min(tl.where(there, tl.where(mask != 0, own, position + 1), 1 << 30))
    last, clear_last = tl.minimum(last, context), tl.minimum(clear_last, context)
    return first, last, tl.maximum(highest - window + 1, 0), clear_last


@triton.jit
def attend(
    queries,
    position,
    mask,
    depths,
    own,
    keys,
    values,
    table,
    kv_head,
    begin,
    stop,
    first,
    last,
    clear_first,
    clear_last,
    window,
    factor,
    cap,
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
):
    """Tiles of entries from `begin` (a multiple of ENTRIES) to `stop`; returns (sums, tops, totals):
    [ROWS, DIM_TILE] of values by weight, [ROWS] of the largest score and of the weights' sum.
    `depths` are the positions of the sequence's tokens in this step, whose entries begin at `own`.
    Unless PARTED, entries that all rows see are masked as well: a short span is done sooner in one part."""
    sums = tl.zeros([ROWS, DIM_TILE], dtype=tl.float32)
    tops = tl.full([ROWS], float("-inf"), dtype=tl.float32)
    totals = tl.zeros([ROWS], dtype=tl.float32)
    clear_begin, clear_stop = begin, begin
    if PARTED:
        if WINDOWED:
            clear_begin = tl.minimum(tl.maximum(tl.cdiv(clear_first, ENTRIES) * ENTRIES, begin), stop)
            sums, tops, totals = _attend_part(
                queries, position, mask, depths, own, keys, values, table,
                kv_head, begin, clear_begin, first, last, window, factor, cap,
                sums, tops, totals, KV_HEADS, DIM, DIM_TILE, BLOCK_SIZE, ENTRIES, True, CAPPED, TREES, PRECISION,
                FORMAT,
            )  # fmt: skip
        clear_stop = tl.minimum(tl.maximum(clear_last // ENTRIES * ENTRIES, clear_begin), stop)
        sums, tops, totals = _attend_part(
            queries, position, mask, depths, own, keys, values, table,
            kv_head, clear_begin, clear_stop, first, last, window, factor, cap,
            sums, tops, totals, KV_HEADS, DIM, DIM_TILE, BLOCK_SIZE, ENTRIES, False, CAPPED, TREES, PRECISION,
            FORMAT,
        )  # fmt: skip
    sums, tops, totals = _attend_part(
        queries, position, mask, depths, own, keys, values, table,
        kv_head, clear_stop, stop, first, last, window, factor, cap,
        sums, tops, totals, KV_HEADS, DIM, DIM_TILE, BLOCK_SIZE, ENTRIES, True, CAPPED, TREES, PRECISION,
        FORMAT,
    )  # fmt: skip
    return sums, tops, totals


@triton.jit
def _attend_part(
    queries,
    position,
    mask,
    depths,
    own,
    keys,
    values,
    table,
    kv_head,
    begin,
    stop,
    first,
    last,
    window,
    factor,
    cap,
    sums,
    tops,
    totals,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    DIM_TILE: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    ENTRIES: tl.constexpr,
    MASKED: tl.constexpr,
    CAPPED: tl.constexpr,
    TREES: tl.constexpr,
    PRECISION: tl.constexpr,
    FORMAT: tl.constexpr,
):
    dim = tl.arange(0, DIM_TILE)
    for start in range(begin, stop, ENTRIES):
        entry = start + tl.arange(0, ENTRIES)
        if MASKED:
            # What nobody sees may be NaN, and its block may not be there at all.
            seen = (entry >= first) & (entry < last)
            block = tl.load(table + entry // BLOCK_SIZE, mask=seen, other=0)
        else:
            block = tl.load(table + entry // BLOCK_SIZE)
        head = block.to(tl.int64) * KV_HEADS + kv_head
        place = row_place(head, entry % BLOCK_SIZE, BLOCK_SIZE, DIM, FORMAT)
        key_places = keys + place[None, :] + dim[:, None]
        value_places = values + place[:, None] + dim[None, :]
        if MASKED:
            key = tl.load(key_places, mask=seen[None, :] & (dim[:, None] < DIM), other=0)
        elif DIM != DIM_TILE:
            key = tl.load(key_places, mask=dim[:, None] < DIM, other=0)
        else:
            key = tl.load(key_places)
        if FORMAT != "":
            key = numbers(key, FORMAT).to(queries.dtype)  # which holds every code
        scores = tl.dot(queries, key, input_precision=PRECISION) * factor  # [ROWS, ENTRIES]
        if FORMAT != "":
            scales = scale_places(keys, head, entry % BLOCK_SIZE, BLOCK_SIZE, DIM)
            scores *= (tl.load(scales, mask=seen, other=0.0) if MASKED else tl.load(scales))[None, :]
        if CAPPED:
            scores = cap * tanh(scores)
        if MASKED:
            visible = (entry[None, :] <= position[:, None]) & (entry[None, :] > position[:, None] - window)
            if TREES:
                index = entry - own
                depth = tl.load(depths + index, mask=(index >= 0) & seen, other=0).to(tl.int32)
                named = (mask[:, None] >> tl.minimum(tl.maximum(index, 0), 63)[None, :].to(tl.int64)) & 1
                in_tree = (index[None, :] < 0) | (named != 0)
                in_tree = in_tree & (tl.where(index >= 0, depth, entry)[None, :] > position[:, None] - window)
                visible = tl.where(mask[:, None] != 0, in_tree, visible)
            visible = visible & seen[None, :]
            scores = tl.where(visible, scores, float("-inf"))
        risen = tl.maximum(tops, tl.max(scores, 1))
        # A row that has seen nothing yet has minus infinity: the difference of two would be NaN.
        base = tl.where(risen == float("-inf"), 0.0, risen) if MASKED else risen
        weights = tl.exp2(scores - base[:, None])
        shrink = tl.exp2(tops - base)
        totals = totals * shrink + tl.sum(weights, 1)
        sums = sums * shrink[:, None]
        if MASKED:
            value = tl.load(value_places, mask=seen[:, None] & (dim[None, :] < DIM), other=0)
        elif DIM != DIM_TILE:
            value = tl.load(value_places, mask=dim[None, :] < DIM, other=0)
        else:
            value = tl.load(value_places)
        if FORMAT != "":
            scales = scale_places(values, head, entry % BLOCK_SIZE, BLOCK_SIZE, DIM)
            by = tl.load(scales, mask=seen, other=0.0) if MASKED else tl.load(scales)
            value = (numbers(value, FORMAT) * by[:, None]).to(queries.dtype)
        sums = tl.dot(weights.to(value.dtype), value, sums, input_precision=PRECISION)
        tops = risen
    return sums, tops, totals
