"""Low-rank adapters, added to a product."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

__all__ = ["Addition", "LowRank"]


@dataclass(frozen=True, eq=False, slots=True)
class LowRank:
    """The product x @ down @ up, whose outputs are in parts. Each part has some columns of x @ down and a
    matrix of its own.

    All matrices are contiguous, of one dtype, and have their inputs as rows, unlike a weight. Part i of the
    outputs, from `starts[i]` on, is (x @ down)[:, the next columns] @ ups[i].
    """

    down: Tensor
    """[in, the sum of all ranks, or more: what is past that is not used]."""
    ups: tuple[Tensor, ...]
    """[rank, outputs] each."""
    starts: tuple[int, ...]
    derived: dict[Any, Any] = field(default_factory=dict, repr=False)
    """Scratch of the backend."""

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return sum(matrix.nbytes for matrix in (self.down, *self.ups))

    def to(self, device: torch.device, dtype: torch.dtype) -> LowRank:
        """Return a copy on that device, in that dtype."""
        down, *ups = (matrix.to(device, dtype).contiguous() for matrix in (self.down, *self.ups))
        return LowRank(down, tuple(ups), self.starts)


class Addition(NamedTuple):
    """An adapter, and its tokens of a step. No token has two adapters."""

    tokens: Tensor | None
    """int64 [n], each once; None is all of them."""
    low_rank: LowRank
