"""Attention over the paged cache: gather a context, then torch's own attention.

Sequences with one new token (decodes) are gathered together, padded to the longest of them, and attend in
one call. The others (prefill chunks) attend one at a time. What depends on the batch but not on the layer
(tables, masks) is worked out once and kept in `batch.derived`.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from pageant.kernels.base import AttentionBatch, Span
from pageant.kernels.quantized_kv import dequantize_blocks, is_quantized

__all__ = ["attend_span", "paged_attention"]


@dataclass(frozen=True, eq=False)
class _Decodes:
    """The n sequences that have one new token, their contexts padded to a common length L."""

    tokens: Tensor  # int64 [n]: rows of the step
    blocks: Tensor  # int64 [n, L / block_size]
    mask: Tensor  # bool [n, 1, 1, L]: what is attended to
    stale: tuple[Tensor, Tensor]  # (sequence, entry) of what was gathered but never written


@dataclass(frozen=True, eq=False)
class _Chunk:
    """One sequence with several new tokens, and its context of L entries."""

    tokens: slice  # rows of the step
    blocks: Tensor  # int64 [L / block_size, rounded up]
    entries: slice  # of what those blocks hold
    mask: Tensor | None  # bool [tokens, L]; None is causal from the first entry


@dataclass(frozen=True, eq=False)
class _Plan:
    decodes: _Decodes | None
    chunks: list[_Chunk]


@dataclass(frozen=True, eq=False)
class _Scores:
    """What is made of the products of queries and keys; see `Kernels.paged_attention`."""

    scale: float
    softcap: float | None
    sinks: Tensor | None

    @property
    def are_plain(self) -> bool:
        """Tell whether torch's own attention computes with them."""
        return self.softcap is None and self.sinks is None


def paged_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    batch: AttentionBatch,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    value_dim: int | None = None,
) -> Tensor:
    """See `Kernels.paged_attention`."""
    scores = _Scores(scale, softcap, sinks)
    plan = _plan(batch, window, block_size=key_cache.shape[2])
    if value_dim is not None:
        value_cache = key_cache[..., key_cache.shape[3] - value_dim :]
    shape = (*query.shape[:2], value_dim or query.shape[2])
    output = torch.empty(shape, dtype=query.dtype, device=query.device)
    if plan.decodes is not None:
        output[plan.decodes.tokens] = _attend_decodes(
            query[plan.decodes.tokens], key_cache, value_cache, plan.decodes, scores
        )
    for chunk in plan.chunks:
        output[chunk.tokens] = _attend_chunk(query[chunk.tokens], key_cache, value_cache, chunk, scores)
    return output


def attend_span(
    attended: Tensor,
    query: Tensor,
    cache: tuple[Tensor, Tensor],
    batch: AttentionBatch,
    span: Span,
    scale: float,
    window: int,
    softcap: float | None = None,
) -> None:
    """Attend over all entries of a span and those that each token's window reaches back to.

    attended: [T, H, D] float, mutated at the span's tokens. query: [T, H, D] of the same dtype.
    """
    key_cache, value_cache = cache
    block_size = key_cache.shape[2]
    start = span.end - (span.last - span.first)
    oldest = max(0, start - window + 1)
    first = oldest // block_size
    entries = torch.arange(oldest, span.end, device=query.device)
    chunk = _Chunk(
        tokens=slice(span.first, span.last),
        blocks=batch.block_tables[span.sequence, first : -(-span.end // block_size)].long(),
        entries=slice(oldest - first * block_size, span.end - first * block_size),
        mask=entries > torch.arange(start, span.end, device=query.device)[:, None] - window,
    )
    scores = _Scores(scale, softcap, None)
    attended[chunk.tokens] = _attend_chunk(query[chunk.tokens], key_cache, value_cache, chunk, scores)


def _attend_decodes(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    decodes: _Decodes,
    scores: _Scores,
) -> Tensor:
    """Query [n, H, D] to [n, H, D]: a group's query heads stand where a chunk's tokens would."""
    num_kv_heads = key_cache.shape[1]
    grouped = query.view(query.shape[0], num_kv_heads, -1, query.shape[2])  # [n, Hkv, H / Hkv, D]
    keys = _gather(key_cache, decodes, query.dtype)
    values = _gather(value_cache, decodes, query.dtype)
    if scores.are_plain:
        attended = F.scaled_dot_product_attention(
            grouped, keys, values, attn_mask=decodes.mask, scale=scores.scale
        )
    else:
        sinks = None if scores.sinks is None else scores.sinks.view(num_kv_heads, -1)
        attended = _attention(grouped, keys, values, decodes.mask, scores, sinks)
    return attended.flatten(1, 2)


def _gather(cache: Tensor, decodes: _Decodes, dtype: torch.dtype) -> Tensor:
    """Return the contexts [n, Hkv, L, D], with one copy of each block."""
    num_heads = cache.shape[1]
    heads = torch.arange(num_heads, device=cache.device)
    rows = decodes.blocks[:, None] * num_heads + heads[:, None]  # [n, Hkv, L / block_size]
    context = _select(cache.flatten(0, 1), rows.flatten(), dtype)
    context = context.view(*rows.shape[:2], -1, context.shape[-1])
    # A mask gives a stale entry no weight, but no weight times NaN is NaN.
    sequences, entries = decodes.stale
    context[sequences, :, entries] = 0
    return context


def _attend_chunk(
    query: Tensor, key_cache: Tensor, value_cache: Tensor, chunk: _Chunk, scores: _Scores
) -> Tensor:
    """Query [tokens, H, D] to [tokens, H, D]."""
    query = query.transpose(0, 1)[None]  # [1, H, tokens, D]
    keys, values = (
        _select(cache, chunk.blocks, query.dtype).transpose(0, 1).flatten(1, 2)[None, :, chunk.entries]
        for cache in (key_cache, value_cache)
    )  # [1, Hkv, L, D]
    if scores.are_plain:
        attended = F.scaled_dot_product_attention(
            query,
            keys,
            values,
            attn_mask=chunk.mask,
            is_causal=chunk.mask is None,
            scale=scores.scale,
            enable_gqa=query.shape[1] != keys.shape[1],
        )
    else:
        groups = query.shape[1] // keys.shape[1]
        keys, values = (x.repeat_interleave(groups, dim=1) for x in (keys, values))
        sinks = None if scores.sinks is None else scores.sinks[:, None]
        attended = _attention(query, keys, values, _causal(chunk, query.device), scores, sinks)
    return attended[0].transpose(0, 1)


def _select(cache: Tensor, blocks: Tensor, dtype: torch.dtype) -> Tensor:
    """Return blocks (int64 [n]) of a cache [N, ..., block_size, D], in `dtype` where the cache is in 8 bits."""
    if not is_quantized(cache):
        return cache.index_select(0, blocks)
    return dequantize_blocks(cache.view(torch.uint8).index_select(0, blocks).view(cache.dtype), dtype)


def _causal(chunk: _Chunk, device: torch.device) -> Tensor:
    """Return a chunk's mask, made where the plan left it implicit."""
    if chunk.mask is not None:
        return chunk.mask
    length = chunk.tokens.stop - chunk.tokens.start
    return torch.ones(length, length, dtype=torch.bool, device=device).tril()


def _attention(
    query: Tensor, keys: Tensor, values: Tensor, mask: Tensor, of: _Scores, sinks: Tensor | None
) -> Tensor:
    """Attend with a soft cap (Gemma 2) or sinks (gpt-oss): query [n, H, m, D], keys [n, H, L, D], sinks [H, m or 1]."""
    scores = (query @ keys.transpose(-1, -2)).float() * of.scale
    if of.softcap is not None:
        scores = of.softcap * torch.tanh(scores / of.softcap)
    scores = scores.masked_fill(~mask, float("-inf"))
    if sinks is not None:
        scores = torch.cat((scores, sinks[..., None].expand(*scores.shape[:-1], 1)), dim=-1)
    weights = scores.softmax(dim=-1)[..., : keys.shape[-2]]
    return weights.to(values.dtype) @ values


def _plan(batch: AttentionBatch, window: int | None, block_size: int) -> _Plan:
    """Return what all layers with this window share, worked out at the first of them."""
    name = (paged_attention, window, block_size)
    plan = batch.derived.get(name)
    if plan is None:
        plan = batch.derived[name] = _make_plan(batch, window, block_size)
    return plan


def _make_plan(batch: AttentionBatch, window: int | None, block_size: int) -> _Plan:
    starts = batch.query_starts.tolist()
    lengths = [stop - start for start, stop in pairwise(starts)]
    trees = _trees(batch, starts)
    decodes = [index for index, length in enumerate(lengths) if length == 1 and not trees[index]]
    chunks = [index for index, length in enumerate(lengths) if length > 1 or trees[index]]
    return _Plan(
        decodes=_plan_decodes(batch, decodes, window, block_size) if decodes else None,
        chunks=[
            _plan_chunk(
                batch, index, slice(starts[index], starts[index + 1]), window, block_size, trees[index]
            )
            for index in chunks
        ],
    )


def _trees(batch: AttentionBatch, starts: list[int]) -> list[bool]:
    """Say for each sequence whether any of its tokens has ancestors."""
    if batch.ancestors is None:
        return [False] * (len(starts) - 1)
    return [bool(batch.ancestors[start:stop].any()) for start, stop in pairwise(starts)]


def _plan_decodes(batch: AttentionBatch, rows: list[int], window: int | None, block_size: int) -> _Decodes:
    """Lay out the sequences `rows`: with a window, each starts at the first block that it reaches."""
    sequences = torch.tensor(rows, device=batch.positions.device)
    tokens = batch.query_starts[sequences].long()
    positions, lengths = batch.positions[tokens], batch.context_lengths[sequences].long()
    oldest = (positions - window + 1).clamp_(min=0) if window is not None else torch.zeros_like(positions)
    first = oldest // block_size
    used = (lengths + block_size - 1) // block_size - first  # blocks gathered for each sequence
    columns = torch.arange(int(used.max()), device=positions.device)
    # Padding repeats a sequence's own first block: a table's tail may name any block, or none.
    columns = first[:, None] + torch.where(columns < used[:, None], columns, 0)
    blocks = batch.block_tables[sequences].long().gather(1, columns)
    offsets = torch.arange(block_size, device=positions.device)
    entries = (columns[:, :, None] * block_size + offsets).flatten(1)  # [n, L]: what was gathered
    padding = torch.arange(entries.shape[1], device=positions.device) >= used[:, None] * block_size
    mask = (entries <= positions[:, None]) & (entries >= oldest[:, None]) & (entries < lengths[:, None])
    stale = (entries >= lengths[:, None]).nonzero(as_tuple=True)
    return _Decodes(tokens, blocks, (mask & ~padding)[:, None, None], (stale[0], stale[1]))


def _plan_chunk(
    batch: AttentionBatch, index: int, tokens: slice, window: int | None, block_size: int, tree: bool
) -> _Chunk:
    positions = batch.positions[tokens]
    stop = int(batch.context_lengths[index])
    oldest = max(0, int(positions.min()) - window + 1) if window is not None else 0
    if tree:  # whose own tokens stand anywhere, seen from their positions
        oldest = min(oldest, stop - len(positions))
    first = oldest // block_size
    blocks = batch.block_tables[index, first : (stop + block_size - 1) // block_size].long()
    entries = torch.arange(oldest, stop, device=positions.device)
    if not tree and (window is None or window >= stop) and torch.equal(positions, entries):
        return _Chunk(tokens, blocks, slice(0, stop), None)
    mask = entries <= positions[:, None]
    if window is not None:
        mask &= entries > positions[:, None] - window
    if tree:
        mask = _with_ancestors(batch, tokens, entries, mask, window)
    return _Chunk(tokens, blocks, slice(oldest - first * block_size, stop - first * block_size), mask)


def _with_ancestors(
    batch: AttentionBatch, tokens: slice, entries: Tensor, causal: Tensor, window: int | None
) -> Tensor:
    """Return what is attended to where a token with ancestors sees by them; entries [L], causal [tokens, L]."""
    assert batch.ancestors is not None
    ancestors, positions = batch.ancestors[tokens, None], batch.positions[tokens]
    count = len(positions)
    mask = torch.ones_like(causal)
    if window is not None:
        mask &= entries > positions[:, None] - window
    mask[:, -count:] = ancestors >> torch.arange(count, device=positions.device) & 1 == 1
    if window is not None:
        mask[:, -count:] &= positions > positions[:, None] - window
    return torch.where(ancestors != 0, mask, causal)
