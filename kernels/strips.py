"""Strips of 16 rows: what a weight in tiles is made of."""

from __future__ import annotations

from torch import Tensor

__all__ = ["STRIP", "strips_of"]

STRIP = 16  # rows


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
