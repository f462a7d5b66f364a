"""Computation of one model by several ranks: the operations that a decoder's layers share with those of other ranks.

A rank has a share of each layer's weights. What it makes of its share of a projection's inputs is a part of a sum over
all ranks. Parts are float32: they are added first and rounded once.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pageant.kernels.base import Kernels
from pageant.kernels.collectives.base import Collectives
from pageant.kernels.tiled import LinearWeight
from pageant.models.sharding import ExpertSharing

__all__ = ["Joint"]


class Joint:
    """Rank's side of all that its layers compute together with those of other ranks.

    Args:
        rank, size: this rank's number, and how many there are.
        segments: parts of sums over inputs that this rank has, each with a weight of its own.
        vocab_size: tokens of the whole vocabulary, of which each rank has as many rows, padded at the end.
        experts: how a mixture's experts are shared out.
    """

    def __init__(
        self, rank: int, size: int, vocab_size: int, segments: int = 1, experts: ExpertSharing = "cut"
    ) -> None:
        self.rank, self.size, self.segments, self.experts = rank, size, segments, experts
        self._vocab_size = vocab_size
        self._collectives: Collectives | None = None

    def join(self, collectives: Collectives) -> None:
        """Compute with these operations from now on."""
        assert (collectives.rank, collectives.size) == (self.rank, self.size), (
            "a rank's operations are its own"
        )
        self._collectives = collectives

    @property
    def collectives(self) -> Collectives:
        """Return the group's operations."""
        assert self._collectives is not None, "a shared-out decoder computes once its ranks have met"
        return self._collectives

    def sum(self, parts: Sequence[Tensor], dtype: torch.dtype, bias: Tensor | None = None) -> Tensor:
        """Return the sum of all ranks' parts, float32 [T, N], and the bias [N]: [T, N], rounded once to dtype.

        parts: those of this rank's segments, in order.
        """
        first = parts[0]
        out = first.new_empty(first.shape, dtype=dtype)
        self.collectives.all_reduce(
            first.unsqueeze(0) if len(parts) == 1 else torch.stack(list(parts)), out, bias
        )
        return out

    def embed(self, token_ids: Tensor, weight: LinearWeight, dtype: torch.dtype, kernels: Kernels) -> Tensor:
        """Return the rows of tokens, int64 [T], of which each rank has those of its part of the vocabulary: [T, N].

        Each token's row comes from one rank, and is exact: the others add zeros to it.
        """
        if self.size == 1:
            return kernels.embed(token_ids, weight, dtype)
        first = self.rank * weight.shape[0]
        return self.sum([kernels.embed_share(token_ids, weight, first, dtype)], dtype)

    def gather_logits(self, part: Tensor) -> Tensor:
        """Return the logits of all ranks' parts of the vocabulary, float32 [R, V], on rank 0; the part elsewhere.

        part: float32 [R, rows of the vocabulary that each rank has].
        """
        collectives = self.collectives
        if self.rank:
            collectives.gather(part.contiguous(), None)
            return part
        parts = part.new_empty(self.size, *part.shape)
        collectives.gather(part.contiguous(), parts)
        return parts.transpose(0, 1).reshape(len(part), -1)[:, : self._vocab_size].contiguous()
