"""Strips of 16 rows: what a weight in tiles is made of.

A row is made of cells, of a few bytes each: some numbers that a product takes at once. In a strip the same cell of
all 16 rows is side by side.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["STRIP", "as_rows", "as_strips", "strips_of"]

STRIP = 16  # rows


def as_strips(rows: Tensor) -> Tensor:
    """Cells of rows [..., M, along, cells] as strips have them, [..., M / 16, along, cells, 16]: a view."""
    return torch.unflatten(rows, -3, (-1, STRIP)).movedim(-3, -1)


def as_rows(strips: Tensor) -> Tensor:
    """The cells of strips [..., M / 16, along, cells, 16] by rows, [..., M, along, cells]: a copy."""
    *others, strips_of_all, along, cells, _ = strips.shape
    rows = strips.new_empty(*others, strips_of_all * STRIP, along, cells)
    as_strips(rows).copy_(strips)
    return rows


def strips_of(rows: int | slice | Tensor, count: int) -> slice:
    """The strips that are some of so many rows.

    Raises ValueError where they are no slice of whole strips.
    """
    if isinstance(rows, slice):
        start, stop, step = rows.indices(count)
        if start % STRIP == 0 and stop % STRIP == 0 and step == 1:
            return slice(start // STRIP, stop // STRIP)
        rows_named = f"rows {start} to {stop} by {step}"
    else:
        rows_named = f"rows {rows}"
    raise ValueError(f"{rows_named}: expected strips of {STRIP}")
