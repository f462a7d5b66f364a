"""Attention over pages on a GPU: which kernel computes which sequences of a step.

Sequences with few new tokens (decodes, drafts to verify) share one short tile of queries, and their contexts
are split over programs (`attention_decode`). The others are cut into tall tiles of queries, one program each
(`attention_prefill`). A step may hold both: each kernel then leaves the other's sequences alone. Lengths stay
on the device; the grids follow from the batch's maxima, which the host knows, so nothing is synchronised and
a captured graph holds for any lengths up to them.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pageant.kernels.base import AttentionBatch
from pageant.kernels.triton.attention_decode import decode, merge_splits
from pageant.kernels.triton.attention_prefill import prefill
from pageant.kernels.triton.kv_codes import format_of, raw
from pageant.kernels.triton.launching import cdiv, next_power_of_2, processors
from pageant.kernels.triton.tuning import Attention, attention_tiles

__all__ = ["paged_attention"]

_NO_WINDOW = 1 << 30
_SHORT_MAX = 8  # tokens of a sequence that share the decode kernel's tile, at most,
_SHORT_ROWS_MAX = 64  # and rows of that tile, where it holds several tokens
_SPLIT_TILES = 4  # of a context's entries are worth a program of their own
_SPLITS_MAX = 64
_MERGED = 16  # splits at a time
_PROGRAMS_PER_PROCESSOR = 16  # where contexts are split: about four waves of them, so that the last is short


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
    """See `Kernels.paged_attention`. Values that are parts of keys are not for this backend (`value_dim`)."""
    if value_dim is not None:
        raise NotImplementedError("the triton backend attends to no latents; models with such are refused")
    tokens, heads, head_dim = query.shape
    assert query.stride(2) == 1 and query.stride(1) == head_dim, "the last two dimensions are contiguous"
    assert key_cache.is_contiguous() and value_cache.is_contiguous()
    output = torch.empty((tokens, heads, head_dim), dtype=query.dtype, device=query.device)
    kv_format, key_cache, value_cache = format_of(key_cache), raw(key_cache), raw(value_cache)
    # The kernels' scores are powers of two.
    factor, cap = (
        (scale / softcap, softcap * math.log2(math.e)) if softcap else (scale * math.log2(math.e), 0.0)
    )
    arguments = (query, key_cache, value_cache, output, batch, factor, cap, window, kv_format, sinks)
    most = min(_SHORT_MAX, max(1, _SHORT_ROWS_MAX * key_cache.shape[1] // heads))
    short = next_power_of_2(max(1, batch.max_query_length))  # each is a variant of the kernel
    short = short if short <= most else 1
    sequences = batch.context_lengths.shape[0]
    if sequences > 1 or batch.max_query_length <= short:
        _decode(*arguments, short=short)
    if batch.max_query_length > short:
        _prefill(*arguments, short=short)
    return output


def _decode(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    output: Tensor,
    batch: AttentionBatch,
    factor: float,
    cap: float,
    window: int | None,
    kv_format: str,
    sinks: Tensor | None,
    *,
    short: int,
) -> None:
    _, heads, head_dim = query.shape
    kv_heads, block_size = keys.shape[1:3]
    groups, sequences = heads // kv_heads, batch.context_lengths.shape[0]
    tiles = attention_tiles("decode", head_dim, query.dtype, query.device)
    rows = max(tiles.rows, next_power_of_2(groups * short))
    reach = min(batch.max_context_length, window + short - 1 if window else _NO_WINDOW)
    splits = _num_splits(sequences * kv_heads, reach, tiles, query.device)
    sums, tops = _scratch(batch, (sequences * short, heads, splits), head_dim)
    decode[(sequences, kv_heads, splits)](
        query,
        keys,
        values,
        output,
        sums,
        tops,
        batch.query_starts,
        batch.context_lengths,
        batch.block_tables,
        batch.positions,
        batch.ancestors,
        sinks,
        query.stride(0),
        batch.block_tables.stride(0),
        factor,
        cap,
        window or _NO_WINDOW,
        splits,
        SHORT=short,
        SPLIT=splits > 1,
        TREES=batch.ancestors is not None,
        FORMAT=kv_format,
        SINKS=sinks is not None,
        **_shapes(heads, kv_heads, head_dim, block_size, rows, tiles, window, cap, query.dtype),
    )
    if splits > 1:
        merge_splits[(sequences * short, heads)](
            sums,
            tops,
            output,
            batch.query_starts,
            sinks,
            splits,
            HEADS=heads,
            DIM=head_dim,
            DIM_TILE=next_power_of_2(head_dim),
            SINKS=sinks is not None,
            SHORT=short,
            PARTS=_MERGED,
            num_warps=4,
        )


def _prefill(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    output: Tensor,
    batch: AttentionBatch,
    factor: float,
    cap: float,
    window: int | None,
    kv_format: str,
    sinks: Tensor | None,
    *,
    short: int,
) -> None:
    tokens, heads, head_dim = query.shape
    kv_heads, block_size = keys.shape[1:3]
    groups, sequences = heads // kv_heads, batch.context_lengths.shape[0]
    tiles = attention_tiles("prefill", head_dim, query.dtype, query.device)
    rows = max(tiles.rows, next_power_of_2(groups))
    # At most one tile of each sequence is not full.
    prefill[(tokens // (rows // groups) + sequences, kv_heads)](
        query,
        keys,
        values,
        output,
        batch.query_starts,
        batch.context_lengths,
        batch.block_tables,
        batch.positions,
        batch.ancestors,
        sinks,
        sequences,
        query.stride(0),
        batch.block_tables.stride(0),
        factor,
        cap,
        window or _NO_WINDOW,
        SHORT=short,
        TREES=batch.ancestors is not None,
        FORMAT=kv_format,
        SINKS=sinks is not None,
        **_shapes(heads, kv_heads, head_dim, block_size, rows, tiles, window, cap, query.dtype),
    )


def _shapes(
    heads: int,
    kv_heads: int,
    head_dim: int,
    block_size: int,
    rows: int,
    tiles: Attention,
    window: int | None,
    cap: float,
    dtype: torch.dtype,
) -> dict[str, object]:
    return {
        "HEADS": heads,
        "KV_HEADS": kv_heads,
        "DIM": head_dim,
        "DIM_TILE": max(16, next_power_of_2(head_dim)),
        "BLOCK_SIZE": block_size,
        "ROWS": rows,
        "ENTRIES": tiles.entries,
        "PARTED": tiles.parted,
        "WINDOWED": window is not None,
        "CAPPED": cap > 0,
        # Three products of 10-bit mantissas make one of 23 bits, and stay on the tensor cores.
        "PRECISION": "tf32x3" if dtype == torch.float32 else "ieee",
        "num_warps": tiles.warps,
        "num_stages": tiles.stages,
    }


def _num_splits(programs: int, entries: int, tiles: Attention, device: torch.device) -> int:
    """A power of two: enough programs for the device to be full, none with very little to do."""
    wanted = cdiv(_PROGRAMS_PER_PROCESSOR * processors(device), max(1, programs))
    useful = cdiv(entries, _SPLIT_TILES * tiles.entries)
    return 1 << max(1, min(wanted, useful, _SPLITS_MAX)).bit_length() - 1


def _scratch(batch: AttentionBatch, shape: tuple[int, int, int], head_dim: int) -> tuple[Tensor, Tensor]:
    """Return the memory in which the programs of a split context leave parts for the merge; the layers share it."""
    name = ("triton", shape, head_dim)
    if name not in batch.derived:
        device = batch.positions.device
        used = shape if shape[2] > 1 else (0, 0, 0)
        batch.derived[name] = (
            torch.empty((*used, head_dim), dtype=torch.float32, device=device),
            torch.empty((*used, 2), dtype=torch.float32, device=device),
        )
    scratch: tuple[Tensor, Tensor] = batch.derived[name]
    return scratch
