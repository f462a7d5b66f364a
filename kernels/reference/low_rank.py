"""Low-rank additions to products, in plain torch."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from pageant.kernels.low_rank import Addition

__all__ = ["add_low_rank"]


def add_low_rank(x: Tensor, y: Tensor, additions: Sequence[Addition]) -> None:
    """See `Kernels.add_low_rank`."""
    for tokens, low_rank in additions:
        low = (x if tokens is None else x[tokens]) @ low_rank.down
        column = 0
        for up, start in zip(low_rank.ups, low_rank.starts, strict=True):
            rank, outputs = up.shape
            added, part = low[:, column : column + rank] @ up, y[:, start : start + outputs]
            column += rank
            if tokens is None:
                part += added
            else:
                part.index_add_(0, tokens, added)
