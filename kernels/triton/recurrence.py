"""Gated DeltaNets and Mamba-2: heads' matrices in registers, while a sequence's tokens pass.

A program has some columns of one head's matrix of one sequence, and takes in token after token, prompts and decodes
alike. The chunked matrix forms were turned down: their rounding depends on where chunks begin.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from pageant.kernels.states import StateBatch, StateMemory
from pageant.kernels.triton.convolution import causal_conv
from pageant.kernels.triton.launching import cdiv, interpreted, next_power_of_2
from pageant.kernels.triton.states import (
    addresses,
    begin_of,
    ends_block,
    memory_arguments,
    sequence_arguments,
    token_at,
    tokens_of,
)

__all__ = ["gated_delta_net", "pass_delta_rule", "pass_state_space", "state_space"]

_NUMBERS = 2048
"""Of a matrix that a program has in registers, at most: with their addresses, 16 of a thread fit."""
_COLUMNS_MIN = 8
_WARPS = 4


def gated_delta_net(
    channels: Tensor, conv: Tensor, decay: Tensor, strength: Tensor, memory: StateMemory, batch: StateBatch
) -> Tensor:
    """See `Kernels.gated_delta_net`."""
    mixed = causal_conv(channels, conv, None, memory, batch, activated=True)
    return _pass(pass_delta_rule, mixed, decay, strength, None, memory, batch)


def state_space(
    mixed: Tensor, decay: Tensor, time_step: Tensor, skip: Tensor, memory: StateMemory, batch: StateBatch
) -> Tensor:
    """See `Kernels.state_space`."""
    return _pass(pass_state_space, mixed, decay, time_step, skip, memory, batch)


def _pass(
    kernel: triton.runtime.JITFunction,
    mixed: Tensor,
    decay: Tensor,
    weight: Tensor,
    skip: Tensor | None,
    memory: StateMemory,
    batch: StateBatch,
) -> Tensor:
    """Return what queries read, float32 [T, H, value_dim]. weight: of a token's change, float32 [T, H]."""
    heads, width = memory.num_heads, memory.value_dim
    assert mixed.stride(1) == 1
    read = torch.empty((len(mixed), heads, width), dtype=torch.float32, device=mixed.device)
    if not len(mixed):
        return read
    keys, columns = next_power_of_2(memory.key_dim), next_power_of_2(width)
    if not interpreted(mixed.device):
        columns = min(columns, max(_COLUMNS_MIN, _NUMBERS // keys))
    pages, page_bytes = memory_arguments(memory)
    kernel[(heads * cdiv(width, columns), len(batch.arrays.context_lengths))](
        mixed,
        decay.contiguous(),
        weight.contiguous(),
        skip,
        read,
        pages,
        *sequence_arguments(batch),
        mixed.stride(0),
        KEY_HEADS=memory.num_key_heads,
        HEADS=heads,
        KEY_DIM=memory.key_dim,
        VALUE_DIM=width,
        KEYS=keys,
        COLUMNS=columns,
        BLOCK_SIZE=batch.arrays.block_size,
        PAGE_BYTES=page_bytes,
        DRAFTS=batch.arrays.replay_starts is not None,
        num_warps=_WARPS,
    )
    return read


@triton.jit(do_not_specialize=["group_stride", "row_stride"])
def pass_delta_rule(
    mixed,
    decays,
    strengths,
    skips,
    read,
    pages,
    starts,
    contexts,
    replays,
    unsure,
    tables,
    group_stride,
    row_stride,
    stride,
    KEY_HEADS: tl.constexpr,
    HEADS: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    KEYS: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    PAGE_BYTES: tl.constexpr,
    DRAFTS: tl.constexpr,
):
    """Program (head and some columns, sequence). A token's numbers are queries, keys, then values."""
    head, key, column, there, offset = _part(HEADS, KEY_DIM, VALUE_DIM, KEYS, COLUMNS)
    own, replay, replayed, count, sure, first, row, state = _begin(
        starts, contexts, replays, unsure, tables, row_stride, pages, group_stride, offset, there,
        KEYS, COLUMNS, BLOCK_SIZE, PAGE_BYTES, DRAFTS,
    )  # fmt: skip
    key_head = head // (HEADS // KEY_HEADS)
    for index in range(count):
        token = token_at(index, own, replay, replayed)
        line = mixed + token * stride
        q = tl.load(line + key_head * KEY_DIM + key, mask=key < KEY_DIM, other=0.0).to(tl.float32)
        k = tl.load(line + (KEY_HEADS + key_head) * KEY_DIM + key, mask=key < KEY_DIM, other=0.0).to(
            tl.float32
        )
        values = line + 2 * KEY_HEADS * KEY_DIM + head * VALUE_DIM + column
        v = tl.load(values, mask=column < VALUE_DIM, other=0.0).to(tl.float32)
        q *= tl.rsqrt(tl.sum(q * q) + 1e-6) * (1.0 / KEY_DIM**0.5)
        k *= tl.rsqrt(tl.sum(k * k) + 1e-6)
        state *= tl.exp(tl.load(decays + token * HEADS + head))
        known = tl.sum(state * k, 0, keep_dims=True)
        state += k * ((v - known) * tl.load(strengths + token * HEADS + head))
        found = tl.sum(state * q, 0, keep_dims=True)
        tl.store(read + (token * HEADS + head) * VALUE_DIM + column, found, mask=column < VALUE_DIM)
        if ends_block(index, sure, first, BLOCK_SIZE):
            _keep(pages, row + (first + index) // BLOCK_SIZE, group_stride, offset, state, there, PAGE_BYTES)


@triton.jit(do_not_specialize=["group_stride", "row_stride"])
def pass_state_space(
    mixed,
    decays,
    steps,
    skips,
    read,
    pages,
    starts,
    contexts,
    replays,
    unsure,
    tables,
    group_stride,
    row_stride,
    stride,
    KEY_HEADS: tl.constexpr,
    HEADS: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    KEYS: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    PAGE_BYTES: tl.constexpr,
    DRAFTS: tl.constexpr,
):
    """Program (head and some columns, sequence). A token's numbers are values, keys, then queries."""
    head, key, column, there, offset = _part(HEADS, KEY_DIM, VALUE_DIM, KEYS, COLUMNS)
    own, replay, replayed, count, sure, first, row, state = _begin(
        starts, contexts, replays, unsure, tables, row_stride, pages, group_stride, offset, there,
        KEYS, COLUMNS, BLOCK_SIZE, PAGE_BYTES, DRAFTS,
    )  # fmt: skip
    key_head = head // (HEADS // KEY_HEADS)
    skip = tl.load(skips + head)
    for index in range(count):
        token = token_at(index, own, replay, replayed)
        line = mixed + token * stride
        v = tl.load(line + head * VALUE_DIM + column, mask=column < VALUE_DIM, other=0.0).to(tl.float32)
        keys = line + HEADS * VALUE_DIM + key_head * KEY_DIM + key
        k = tl.load(keys, mask=key < KEY_DIM, other=0.0).to(tl.float32)
        q = tl.load(keys + KEY_HEADS * KEY_DIM, mask=key < KEY_DIM, other=0.0).to(tl.float32)
        state *= tl.exp(tl.load(decays + token * HEADS + head))
        state += k * (v * tl.load(steps + token * HEADS + head))
        found = skip * v + tl.sum(state * q, 0, keep_dims=True)
        tl.store(read + (token * HEADS + head) * VALUE_DIM + column, found, mask=column < VALUE_DIM)
        if ends_block(index, sure, first, BLOCK_SIZE):
            _keep(pages, row + (first + index) // BLOCK_SIZE, group_stride, offset, state, there, PAGE_BYTES)


@triton.jit
def _part(
    HEADS: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    KEYS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Return (head, keys [KEYS, 1], columns [1, COLUMNS], which numbers are there, where in a state) of a program."""
    head = tl.program_id(0) % HEADS
    key = tl.arange(0, KEYS)[:, None]
    column = tl.program_id(0) // HEADS * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    there = (key < KEY_DIM) & (column < VALUE_DIM)
    return head, key, column, there, tl.where(there, ((head * KEY_DIM + key) * VALUE_DIM + column) * 4, 0)


@triton.jit
def _begin(
    starts,
    contexts,
    replays,
    unsure,
    tables,
    row_stride,
    pages,
    group_stride,
    offset,
    there,
    KEYS: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    PAGE_BYTES: tl.constexpr,
    DRAFTS: tl.constexpr,
):
    """Return the tokens of a program's sequence as `tokens_of` does, where its blocks are in the tables, and its part
    of the matrix before the first token."""
    sequence = tl.program_id(1)
    own, replay, replayed, count, sure, first = tokens_of(starts, contexts, replays, unsure, sequence, DRAFTS)
    row = tables + sequence.to(tl.int64) * row_stride
    state = tl.zeros((KEYS, COLUMNS), tl.float32)
    if (count > 0) & (first > 0):
        place = addresses(pages, row + begin_of(first, BLOCK_SIZE), group_stride, offset, PAGE_BYTES)
        state = tl.load(place.to(tl.pointer_type(tl.float32)), mask=there, other=0.0)
    tl.debug_barrier()  # it has been read before it is written
    return own, replay, replayed, count, sure, first, row, state


@triton.jit
def _keep(pages, blocks, group_stride, offset, state, there, PAGE_BYTES: tl.constexpr):
    place = addresses(pages, blocks, group_stride, offset, PAGE_BYTES)
    tl.store(place.to(tl.pointer_type(tl.float32)), state, mask=there)
