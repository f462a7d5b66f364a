"""Steps of sequences whose states lie in pages of two groups' blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pageant.kernels.base import AttentionBatch, StateRows
from pageant.kernels.states import Page, StateBatch
from pageant.kernels.strands import StateArrays
from pageant.models.state_batch import make_state_batch

BLOCK_SIZE, GROUPS, NUM_BLOCKS = 8, 2, 200
MARK = 7  # in every byte that nobody has written


def marked_pages(
    num_bytes: int, page_bytes: int | None = None, device: torch.device | str = "cpu"
) -> tuple[Page, ...]:
    """Return pages for states of so many bytes, in wider rows, and full of marks."""
    page_bytes = page_bytes or -(-num_bytes // 8) * 8 + 8
    count = -(-num_bytes // page_bytes)
    shape = NUM_BLOCKS, page_bytes + 16
    wider = [torch.full(shape, MARK, dtype=torch.uint8, device=device) for _ in range(count)]
    return tuple(Page(n % GROUPS, one[:, :page_bytes]) for n, one in enumerate(wider))


def own_spans(spans: Sequence[tuple[int, int]], rows: StateRows | None) -> list[tuple[int, int]]:
    """Return the spans of tokens without those that are replayed, which each begins with."""
    replays = [0] * len(spans) if rows is None else rows.replayed.tolist()
    return [(first + more, last) for (first, last), more in zip(spans, replays, strict=True)]


def make_way(tables: Tensor, spans: Sequence[tuple[int, int]], rows: StateRows | None = None) -> StateBatch:
    """Return the way of a step that takes a span of each sequence in; replayed tokens count to it.

    tables: int32 [groups, S, max_blocks].
    """
    device = tables.device
    lengths = torch.tensor([last - first for first, last in own_spans(spans, rows)])
    nothing: Any = torch.empty(0)
    batch = AttentionBatch(
        query_starts=F.pad(lengths.cumsum(0), (1, 0)).int().to(device),
        context_lengths=torch.tensor([last for _, last in spans], dtype=torch.int32, device=device),
        block_tables=tables[0],
        slots=nothing,
        positions=nothing,
        max_query_length=int(lengths.max()),
        max_context_length=max(last for _, last in spans),
        states=rows,
    )
    return make_state_batch(batch, tables[:, : len(spans)], BLOCK_SIZE)


def no_tokens() -> StateBatch:
    """Return the way of a step without sequences."""
    none = torch.empty(0, dtype=torch.int32)
    return StateBatch(
        StateArrays(torch.zeros(1, dtype=torch.int32), none, none.view(GROUPS, 0, 0), BLOCK_SIZE)
    )
