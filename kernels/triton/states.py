"""States of recurrent layers where they lie: in pages of the KV cache, which kernels find without the host.

Sequences, tokens and blocks are read from the batch on the device, so that a captured graph holds for all steps of its
shape. A state's bytes may begin in one page and end in another; each number's address is looked up by itself.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from pageant.kernels.states import StateBatch, StateMemory

__all__ = [
    "addresses",
    "begin_of",
    "ends_block",
    "memory_arguments",
    "sequence_arguments",
    "token_at",
    "tokens_of",
]

_PAGES = "triton pages"


def memory_arguments(memory: StateMemory) -> tuple[Tensor, int]:
    """Return where pages are, int64 [pages, 3], and the bytes of each.

    A page has its address, its group, and the bytes from a block to the next.
    """
    pages: Tensor | None = memory.derived.get(_PAGES)
    if pages is None:
        lines = [(page.memory.data_ptr(), page.group, page.memory.stride(0)) for page in memory.pages]
        pages = torch.tensor(lines, dtype=torch.int64, device=memory.pages[0].memory.device)
        memory.derived[_PAGES] = pages
    return pages, memory.pages[0].memory.shape[1]


def sequence_arguments(batch: StateBatch) -> tuple[Any, ...]:
    """Return the arguments `starts` to `row_stride` of kernels; None for those of drafts, where there are none."""
    arrays = batch.arrays
    tables = arrays.tables
    assert tables.stride(2) == 1, "a sequence's blocks are neighbours"
    return (
        *(arrays.query_starts, arrays.context_lengths, arrays.replay_starts, arrays.unsure),
        *(tables, tables.stride(0), tables.stride(1)),
    )


@triton.jit
def tokens_of(starts, contexts, replays, unsure, sequence, DRAFTS: tl.constexpr):
    """Return (own, first replayed, number replayed, all, sure, position of the first) of a sequence's tokens.

    `own` is the first of the step's own. Those that are replayed come before them.
    """
    own = tl.load(starts + sequence)
    count = tl.load(starts + sequence + 1) - own
    replay = own
    replayed = 0
    sure = count
    if DRAFTS:
        replay = tl.load(replays + sequence)
        replayed = tl.load(replays + sequence + 1) - replay
        count += replayed
        sure = count - tl.load(unsure + sequence)
    return own, replay, replayed, count, sure, tl.load(contexts + sequence) - count


@triton.jit
def token_at(index, own, replay, replayed):
    """Return the number, int64, of a sequence's tokens by their order; see `tokens_of`."""
    return tl.where(index < replayed, replay + index, own + index - replayed).to(tl.int64)


@triton.jit
def ends_block(index, sure, first, BLOCK_SIZE: tl.constexpr):
    """Tell whether the state behind a sequence's token is kept, by the token's order."""
    return (index < sure) & ((index == sure - 1) | ((first + index + 1) % BLOCK_SIZE == 0))


@triton.jit
def begin_of(first, BLOCK_SIZE: tl.constexpr):
    """Return which of its sequence's blocks has the state before the token at position `first`, above 0."""
    return (first - 1) // BLOCK_SIZE


@triton.jit
def addresses(pages, blocks, group_stride, offset, PAGE_BYTES: tl.constexpr):
    """Return where bytes of a state are, int64. offset: of the bytes, within the state.

    blocks: where the tables of the first group have the block; `group_stride` is from a group to the next.
    """
    line = pages + offset // PAGE_BYTES * 3
    block = tl.load(blocks + tl.load(line + 1) * group_stride).to(tl.int64)
    return tl.load(line) + block * tl.load(line + 2) + offset % PAGE_BYTES
