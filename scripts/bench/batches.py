"""Batches that attention is timed with."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pageant.kernels.base import AttentionBatch


def scattered_batch(
    sequences: Sequence[tuple[int, int]], block_size: int, device: torch.device | str = "cpu"
) -> AttentionBatch:
    """Sequences of (new tokens, context), their blocks scattered."""
    blocks = [-(-context // block_size) for _, context in sequences]
    order = torch.randperm(sum(blocks), generator=torch.Generator().manual_seed(0)).int()
    tables = torch.nn.utils.rnn.pad_sequence(list(torch.split_with_sizes(order, blocks)), batch_first=True)
    positions = torch.cat([torch.arange(context - new, context) for new, context in sequences])
    return AttentionBatch(
        query_starts=torch.tensor([0, *(new for new, _ in sequences)]).cumsum(0).int().to(device),
        context_lengths=torch.tensor([context for _, context in sequences]).int().to(device),
        block_tables=tables.to(device),
        slots=torch.zeros_like(positions).to(device),
        positions=positions.to(device),
        max_query_length=max(new for new, _ in sequences),
        max_context_length=max(context for _, context in sequences),
    )
