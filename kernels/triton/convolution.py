"""The short causal convolutions of recurrent layers.

A program has some channels of one sequence. It computes tile after tile of tokens from inputs where they lie, and then
writes the last inputs to the blocks that keep them. The last block is written first: only the first of them can be that
with the inputs before the step, which each may need.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from pageant.kernels.states import StateBatch, StateMemory
from pageant.kernels.triton.launching import cdiv, next_power_of_2
from pageant.kernels.triton.mathematics import silu
from pageant.kernels.triton.states import (
    addresses,
    begin_of,
    memory_arguments,
    sequence_arguments,
    token_at,
    tokens_of,
)

__all__ = ["causal_conv", "convolve"]

_CHANNELS = 64  # of a program
_TOKENS = 16  # of a tile


def causal_conv(
    channels: Tensor,
    conv: Tensor,
    bias: Tensor | None,
    memory: StateMemory,
    batch: StateBatch,
    *,
    activated: bool,
) -> Tensor:
    """See `Kernels.causal_conv`."""
    sequences, size = len(batch.arrays.context_lengths), memory.num_channels
    assert channels.stride(1) == 1 or size == 1
    mixed = torch.empty((len(channels), size), dtype=channels.dtype, device=channels.device)
    if not len(channels):
        return mixed
    pages, page_bytes = memory_arguments(memory)
    convolve[(cdiv(size, _CHANNELS), sequences)](
        channels,
        conv.contiguous(),
        bias,
        mixed,
        pages,
        *sequence_arguments(batch),
        channels.stride(0),
        4 * memory.num_heads * memory.key_dim * memory.value_dim,
        SIZE=size,
        CHANNELS=_CHANNELS,
        TOKENS=max(_TOKENS, next_power_of_2(memory.kernel)),
        KERNEL=memory.kernel,
        ROWS=next_power_of_2(max(1, memory.kernel - 1)),
        BLOCK_SIZE=batch.arrays.block_size,
        PAGE_BYTES=page_bytes,
        ACTIVATED=activated,
        BIASED=bias is not None,
        DRAFTS=batch.arrays.replay_starts is not None,
        num_warps=4,
    )
    return mixed


@triton.jit(do_not_specialize=["group_stride", "row_stride", "first_byte"])
def convolve(
    channels,
    taps,
    bias,
    mixed,
    pages,
    starts,
    contexts,
    replays,
    unsure,
    tables,
    group_stride,
    row_stride,
    stride,
    first_byte,
    SIZE: tl.constexpr,
    CHANNELS: tl.constexpr,
    TOKENS: tl.constexpr,
    KERNEL: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    PAGE_BYTES: tl.constexpr,
    ACTIVATED: tl.constexpr,
    BIASED: tl.constexpr,
    DRAFTS: tl.constexpr,
):
    """Program (some channels, sequence)."""
    dtype: tl.constexpr = channels.dtype.element_ty
    BEFORE: tl.constexpr = KERNEL - 1
    sequence = tl.program_id(1)
    own, replay, replayed, count, sure, first = tokens_of(starts, contexts, replays, unsure, sequence, DRAFTS)
    row = tables + sequence.to(tl.int64) * row_stride
    channel = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)[None, :]
    there = channel < SIZE
    for begin in range(0, count, TOKENS):
        index = begin + tl.arange(0, TOKENS)[:, None]
        total = tl.zeros((TOKENS, CHANNELS), tl.float32)
        for tap in tl.static_range(KERNEL):
            at = index + (tap - BEFORE)
            place = channels + token_at(at, own, replay, replayed) * stride + channel
            x = _inputs(
                place, at, there & (at < count), (begin == 0) & (first > 0), pages, row, first, group_stride,
                first_byte, channel, dtype, BEFORE, SIZE, BLOCK_SIZE, PAGE_BYTES,
            )  # fmt: skip
            total += x.to(tl.float32) * tl.load(taps + channel * KERNEL + tap, mask=there, other=0.0).to(
                tl.float32
            )
        if BIASED:
            total += tl.load(bias + channel, mask=there, other=0.0).to(tl.float32)
        if ACTIVATED:
            total = silu(total)
        place = mixed + token_at(index, own, replay, replayed) * SIZE + channel
        tl.store(place, total.to(dtype), mask=there & (index < count))
    if sure > 0:
        last = (first + sure - 1) // BLOCK_SIZE
        for number in range(last - first // BLOCK_SIZE + 1):
            column = last - number
            end = tl.minimum((column + 1) * BLOCK_SIZE, first + sure) - first  # behind the block's last token
            line = tl.arange(0, ROWS)[:, None]
            at = end - BEFORE + line
            whole = there & (line < BEFORE)
            place = channels + token_at(at, own, replay, replayed) * stride + channel
            x = _inputs(
                place, at, whole, (end < BEFORE) & (first > 0), pages, row, first, group_stride,
                first_byte, channel, dtype, BEFORE, SIZE, BLOCK_SIZE, PAGE_BYTES,
            )  # fmt: skip
            tl.debug_barrier()  # inputs before the step have been read before they are written
            offset = _offsets(whole, line, channel, first_byte, dtype, SIZE)
            place = addresses(pages, row + column, group_stride, offset, PAGE_BYTES)
            tl.store(place.to(tl.pointer_type(dtype)), x, mask=whole)


@triton.jit
def _inputs(
    place,
    at,
    there,
    has_kept,
    pages,
    row,
    first,
    group_stride,
    first_byte,
    channel,
    dtype: tl.constexpr,
    BEFORE: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    PAGE_BYTES: tl.constexpr,
):
    """Return the inputs of a sequence's tokens by their order `at`.

    Those of the step are at `place`. Those before it, if it `has_kept` any, are in the state before the step, the
    oldest first.
    """
    x = tl.load(place, mask=there & (at >= 0), other=0.0)
    if has_kept:
        kept = there & (at < 0)
        offset = _offsets(kept, at + BEFORE, channel, first_byte, dtype, SIZE)
        where = addresses(pages, row + begin_of(first, BLOCK_SIZE), group_stride, offset, PAGE_BYTES)
        x = tl.where(kept, tl.load(where.to(tl.pointer_type(dtype)), mask=kept, other=0.0), x)
    return x


@triton.jit
def _offsets(there, line, channel, first_byte, dtype: tl.constexpr, SIZE: tl.constexpr):
    """Return where a state's bytes have the inputs of some lines; 0 for those that are not `there`."""
    return tl.where(there, first_byte + (line * SIZE + channel) * (dtype.primitive_bitwidth // 8), 0)
