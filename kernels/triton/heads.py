"""New heads of a step before attention, in one launch: norms, rotation, the write into the cache."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from pageant.kernels.base import HeadNorms
from pageant.kernels.triton.kv_codes import encode, format_of, raw, row_place, scale_of, scale_places
from pageant.kernels.triton.launching import cdiv, next_power_of_2

__all__ = ["prepare_heads", "rope", "rope_and_write_kv"]

_HEADS = 8  # of one program


def rope(query: Tensor, key: Tensor, cos_sin_cache: Tensor, positions: Tensor) -> None:
    """See `Kernels.rope`."""
    _prepare(query, key, None, cos_sin_cache, positions, None, None, None, None)


def rope_and_write_kv(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cos_sin_cache: Tensor | None,
    positions: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slots: Tensor,
    norms: HeadNorms | None = None,
) -> None:
    """See `Kernels.rope_and_write_kv`."""
    _prepare(query, key, value, cos_sin_cache, positions, key_cache, value_cache, slots, norms)


def _prepare(
    query: Tensor,
    key: Tensor,
    value: Tensor | None,
    cos_sin_cache: Tensor | None,
    positions: Tensor,
    key_cache: Tensor | None,
    value_cache: Tensor | None,
    slots: Tensor | None,
    norms: HeadNorms | None,
) -> None:
    """Keys are turned in place where there is no cache for them."""
    tokens, query_heads, head_dim = query.shape
    for heads in (query, key) if value is None else (query, key, value):
        assert heads.stride(2) == 1 and heads.stride(1) == head_dim
    for cache in (key_cache, value_cache):
        assert cache is None or cache.is_contiguous()
    kv_format = ""
    if key_cache is not None and value_cache is not None:
        kv_format, key_cache, value_cache = format_of(key_cache), raw(key_cache), raw(value_cache)
    # Without a rotation, halves are only two parts of a head.
    half = (head_dim if cos_sin_cache is None else cos_sin_cache.shape[1]) // 2
    query_programs = cdiv(query_heads, _HEADS)
    prepare_heads[(tokens, query_programs + cdiv(key.shape[1], _HEADS))](
        query,
        key,
        value,
        cos_sin_cache,
        positions,
        key_cache,
        value_cache,
        slots,
        None if norms is None else norms.query,
        None if norms is None else norms.key,
        0.0 if norms is None else norms.eps,
        query.stride(0),
        key.stride(0),
        0 if value is None else value.stride(0),
        QUERY_HEADS=query_heads,
        KEY_HEADS=key.shape[1],
        QUERY_PROGRAMS=query_programs,
        HEADS=_HEADS,
        DIM=head_dim,
        DIM_TILE=next_power_of_2(head_dim),
        HALF=half,
        HALF_TILE=next_power_of_2(max(1, half)),
        REST_TILE=next_power_of_2(max(1, head_dim - 2 * half)),
        BLOCK_SIZE=1 if key_cache is None else key_cache.shape[2],
        NORM="" if norms is None else "wide" if norms.wide else "rms",
        ROTATES=cos_sin_cache is not None,
        CACHES=key_cache is not None,
        FORMAT=kv_format,
        num_warps=min(4, max(1, _HEADS * next_power_of_2(head_dim) // 512)),
    )


@triton.jit
def prepare_heads(
    query,
    key,
    value,
    table,
    positions,
    key_cache,
    value_cache,
    slots,
    query_weight,
    key_weight,
    eps,
    query_stride,
    key_stride,
    value_stride,
    QUERY_HEADS: tl.constexpr,
    KEY_HEADS: tl.constexpr,
    QUERY_PROGRAMS: tl.constexpr,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    DIM_TILE: tl.constexpr,
    HALF: tl.constexpr,
    HALF_TILE: tl.constexpr,
    REST_TILE: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    NORM: tl.constexpr,
    ROTATES: tl.constexpr,
    CACHES: tl.constexpr,
    FORMAT: tl.constexpr,
):
    """Program (token, some heads): the queries' come first."""
    token = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    line = table + tl.load(positions + token) * (2 * HALF) if ROTATES else table
    if part < QUERY_PROGRAMS:
        head = part * HEADS + tl.arange(0, HEADS)[:, None]
        lines = query + token * query_stride + head * DIM
        _turn(
            lines, lines, lines, head < QUERY_HEADS, query_weight, eps, line,
            DIM, HALF, HALF_TILE, REST_TILE, NORM, ROTATES, False, "",
        )  # fmt: skip
    else:
        head = (part - QUERY_PROGRAMS) * HEADS + tl.arange(0, HEADS)[:, None]
        there = head < KEY_HEADS
        lines = key + token * key_stride + head * DIM
        if CACHES:
            slot = tl.load(slots + token)
            line_of_head = slot // BLOCK_SIZE * KEY_HEADS + head
            places = row_place(line_of_head, slot % BLOCK_SIZE, BLOCK_SIZE, DIM, FORMAT)
            key_scales = scale_places(key_cache, line_of_head, slot % BLOCK_SIZE, BLOCK_SIZE, DIM)
            _turn(
                lines, key_cache + places, key_scales, there, key_weight, eps, line,
                DIM, HALF, HALF_TILE, REST_TILE, NORM, ROTATES, True, FORMAT,
            )  # fmt: skip
            dim = tl.arange(0, DIM_TILE)[None, :]
            whole = there & (dim < DIM)
            values = tl.load(value + token * value_stride + head * DIM + dim, mask=whole, other=0.0)
            if FORMAT != "":
                x = values.to(tl.float32)
                scale = scale_of(tl.max(tl.abs(x), 1), tl.sum(x * 0.0, 1), FORMAT)[:, None]
                tl.store(value_cache + places + dim, encode(x, scale, FORMAT), mask=whole)
                value_scales = scale_places(value_cache, line_of_head, slot % BLOCK_SIZE, BLOCK_SIZE, DIM)
                tl.store(value_scales, scale, mask=there)
            else:
                tl.store(value_cache + places + dim, values, mask=whole)
        else:
            _turn(
                lines, lines, lines, there, key_weight, eps, line,
                DIM, HALF, HALF_TILE, REST_TILE, NORM, ROTATES, False, "",
            )  # fmt: skip


@triton.jit
def _turn(
    lines,
    places,
    scales,
    there,
    weight,
    eps,
    line,
    DIM: tl.constexpr,
    HALF: tl.constexpr,
    HALF_TILE: tl.constexpr,
    REST_TILE: tl.constexpr,
    NORM: tl.constexpr,
    ROTATES: tl.constexpr,
    COPIES: tl.constexpr,
    FORMAT: tl.constexpr,
):
    """Heads from their lines to their places, in three parts: two halves that are turned, and what is not.

    With a FORMAT their places are those of codes, and `scales` [heads, 1] of their scales."""
    dtype: tl.constexpr = lines.dtype.element_ty
    near = tl.arange(0, HALF_TILE)[None, :]
    far = 2 * HALF + tl.arange(0, REST_TILE)[None, :]
    turned = there & (near < HALF)
    left = there & (far < DIM)
    first = tl.load(lines + near, mask=turned, other=0.0).to(tl.float32)
    second = tl.load(lines + HALF + near, mask=turned, other=0.0).to(tl.float32)
    rest = tl.load(lines + far, mask=left, other=0.0).to(tl.float32)
    if NORM != "":
        squares = tl.sum(first * first, 1) + tl.sum(second * second, 1) + tl.sum(rest * rest, 1)
        factor = tl.rsqrt(squares / DIM + eps)[:, None]
        first = _weigh(first * factor, weight + near, near < HALF, NORM, dtype)
        second = _weigh(second * factor, weight + HALF + near, near < HALF, NORM, dtype)
        rest = _weigh(rest * factor, weight + far, far < DIM, NORM, dtype)
        tl.debug_barrier()  # all of a head has been read before any of it is written
    if ROTATES:
        cos = tl.load(line + near, mask=near < HALF, other=0.0)
        sin = tl.load(line + HALF + near, mask=near < HALF, other=0.0)
        first, second = first * cos - second * sin, second * cos + first * sin
    if FORMAT != "":
        # Rounded as in a cache of the model's dtype.
        first, second = first.to(dtype).to(tl.float32), second.to(dtype).to(tl.float32)
        largest = tl.maximum(tl.max(tl.abs(first), 1), tl.max(tl.abs(second), 1))
        largest = tl.maximum(largest, tl.max(tl.abs(rest), 1))
        zeros = tl.sum(first * 0.0, 1) + tl.sum(second * 0.0, 1) + tl.sum(rest * 0.0, 1)
        scale = scale_of(largest, zeros, FORMAT)[:, None]
        tl.store(scales, scale, mask=there)
        tl.store(places + near, encode(first, scale, FORMAT), mask=turned)
        tl.store(places + HALF + near, encode(second, scale, FORMAT), mask=turned)
        tl.store(places + far, encode(rest, scale, FORMAT), mask=left)
    else:
        tl.store(places + near, first.to(dtype), mask=turned)
        tl.store(places + HALF + near, second.to(dtype), mask=turned)
        if COPIES or NORM != "":
            tl.store(places + far, rest.to(dtype), mask=left)


@triton.jit
def _weigh(normed, weight, there, NORM: tl.constexpr, dtype: tl.constexpr):
    """Rounded where the reference rounds, and float32 again."""
    factor = tl.load(weight, mask=there, other=0.0)
    weighed = normed * factor.to(tl.float32) if NORM == "wide" else normed.to(dtype) * factor
    return weighed.to(dtype).to(tl.float32)
