"""Rotary embedding, in place, and activations."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from pageant.kernels.triton.launching import cdiv, next_power_of_2
from pageant.kernels.triton.mathematics import activate

__all__ = ["activate_rows", "gelu", "gelu_and_mul", "rope", "rotate", "silu_and_mul"]

_COLUMNS = 1024  # of an activation's tile
_HEADS = 8  # that a program turns


def rope(query: Tensor, key: Tensor, cos_sin_cache: Tensor, positions: Tensor) -> None:
    """See `Kernels.rope`."""
    for heads in (query, key):
        assert heads.stride(2) == 1 and heads.stride(1) == heads.shape[2]
    half = cos_sin_cache.shape[1] // 2
    query_programs = cdiv(query.shape[1], _HEADS)
    rotate[(query.shape[0], query_programs + cdiv(key.shape[1], _HEADS))](
        query,
        key,
        cos_sin_cache,
        positions,
        query.stride(0),
        key.stride(0),
        QUERY_HEADS=query.shape[1],
        KEY_HEADS=key.shape[1],
        QUERY_PROGRAMS=query_programs,
        HEADS=_HEADS,
        DIM=query.shape[2],
        HALF=half,
        HALF_TILE=next_power_of_2(half),
        num_warps=min(4, max(1, _HEADS * next_power_of_2(half) // 256)),
    )


@triton.jit
def rotate(
    query,
    key,
    table,
    positions,
    query_stride,
    key_stride,
    QUERY_HEADS: tl.constexpr,
    KEY_HEADS: tl.constexpr,
    QUERY_PROGRAMS: tl.constexpr,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    HALF: tl.constexpr,
    HALF_TILE: tl.constexpr,
):
    """Program (token, some heads): the queries' come first."""
    token = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    place = tl.arange(0, HALF_TILE)
    line = table + tl.load(positions + token) * (2 * HALF) + place
    cos = tl.load(line, mask=place < HALF, other=0.0)[None, :]
    sin = tl.load(line + HALF, mask=place < HALF, other=0.0)[None, :]
    if part < QUERY_PROGRAMS:
        _rotate_heads(
            query + token * query_stride, part * HEADS, QUERY_HEADS, cos, sin, HEADS, DIM, HALF, HALF_TILE
        )
    else:
        first = (part - QUERY_PROGRAMS) * HEADS
        _rotate_heads(key + token * key_stride, first, KEY_HEADS, cos, sin, HEADS, DIM, HALF, HALF_TILE)


@triton.jit
def _rotate_heads(
    heads,
    begin,
    stop,
    cos,
    sin,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    HALF: tl.constexpr,
    HALF_TILE: tl.constexpr,
):
    head = (begin + tl.arange(0, HEADS))[:, None]
    place = tl.arange(0, HALF_TILE)[None, :]
    there = (head < stop) & (place < HALF)
    low = heads + head * DIM + place
    first = tl.load(low, mask=there, other=0.0).to(tl.float32)
    second = tl.load(low + HALF, mask=there, other=0.0).to(tl.float32)
    dtype: tl.constexpr = heads.dtype.element_ty
    tl.store(low, (first * cos - second * sin).to(dtype), mask=there)
    tl.store(low + HALF, (second * cos + first * sin).to(dtype), mask=there)


def silu_and_mul(gate_up: Tensor) -> Tensor:
    """See `Kernels.silu_and_mul`."""
    return _activate(gate_up, "silu", gated=True)


def gelu_and_mul(gate_up: Tensor, tanh: bool) -> Tensor:
    """See `Kernels.gelu_and_mul`."""
    return _activate(gate_up, "gelu_tanh" if tanh else "gelu", gated=True)


def gelu(x: Tensor, tanh: bool) -> Tensor:
    """See `Kernels.gelu`."""
    return _activate(x.reshape(-1, x.shape[-1]), "gelu_tanh" if tanh else "gelu", gated=False).view(x.shape)


def _activate(x: Tensor, activation: str, *, gated: bool) -> Tensor:
    rows, width = x.shape
    size = width // 2 if gated else width
    assert x.stride(1) == 1 or width == 1
    output = torch.empty((rows, size), dtype=x.dtype, device=x.device)
    columns = min(_COLUMNS, next_power_of_2(max(1, size)))
    activate_rows[(rows, cdiv(size, columns))](
        x,
        output,
        x.stride(0),
        SIZE=size,
        COLUMNS=columns,
        ACTIVATION=activation,
        GATED=gated,
        num_warps=max(1, columns // 256),
    )
    return output


@triton.jit
def activate_rows(
    x,
    output,
    stride,
    SIZE: tl.constexpr,
    COLUMNS: tl.constexpr,
    ACTIVATION: tl.constexpr,
    GATED: tl.constexpr,
):
    """Program (row, some columns). What is gated is rounded before it is multiplied, as the reference does."""
    dtype: tl.constexpr = output.dtype.element_ty
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    there = column < SIZE
    values = tl.load(x + row * stride + column, mask=there, other=0.0).to(tl.float32)
    values = activate(values, ACTIVATION).to(dtype)
    if GATED:
        values = values * tl.load(x + row * stride + SIZE + column, mask=there, other=0.0)
    tl.store(output + row * SIZE + column, values, mask=there)
