"""Token sequences that go through a model, or a layer, at once, in a cache of their own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from pageant.kernels.base import AttentionBatch

__all__ = ["BLOCK_SIZE", "Pass", "together"]

BLOCK_SIZE = 16
_TOKENS = 2048  # of a pass, if no sequence alone has more


class Pass:
    """Sequences that go through a layer at once."""

    def __init__(self, sequences: Sequence[Sequence[int]]) -> None:
        lengths = [len(sequence) for sequence in sequences]
        width = -(-max(lengths) // BLOCK_SIZE)
        firsts = [number * width for number in range(len(sequences))]
        self.num_blocks = len(sequences) * width
        self.token_ids = torch.tensor([token for sequence in sequences for token in sequence])
        self.positions = torch.cat([torch.arange(length) for length in lengths])
        slots = [first * BLOCK_SIZE + torch.arange(n) for first, n in zip(firsts, lengths, strict=True)]
        self.batch = AttentionBatch(
            query_starts=torch.tensor([0, *lengths]).cumsum(0).to(torch.int32),
            context_lengths=torch.tensor(lengths, dtype=torch.int32),
            block_tables=torch.arange(self.num_blocks, dtype=torch.int32).view(len(sequences), width),
            slots=torch.cat(slots),
            positions=self.positions,
            max_query_length=max(lengths),
            max_context_length=max(lengths),
        )
        self.stream = torch.empty(0)
        """[T, hidden_size]: what the layers so far have made of the tokens."""


def together(sequences: Sequence[Sequence[int]]) -> Iterator[list[Sequence[int]]]:
    """Yield some sequences at a time, the longest first, so that those of a pass are of about one length."""
    some: list[Sequence[int]] = []
    for sequence in sorted(sequences, key=len, reverse=True):
        if some and len(some[0]) * (len(some) + 1) > _TOKENS:
            yield some
            some = []
        some.append(sequence)
    yield some
