"""Panels of 16 rows: the layout of packed weights.

A row consists of cells of a few bytes: some numbers that a product takes at once. In a panel the same cell of
all 16 rows is side by side.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["PANEL_ROWS", "as_panels", "as_rows", "panels_of"]

# Rows of a panel.
PANEL_ROWS = 16


def as_panels(rows: Tensor) -> Tensor:
    """Return a view of cells of rows [..., M, along, cells] of any dtype as panels [..., M / 16, along, cells,
    16].
    """
    return torch.unflatten(rows, -3, (-1, PANEL_ROWS)).movedim(-3, -1)


def as_rows(panels: Tensor) -> Tensor:
    """Return a copy of panels [..., M / 16, along, cells, 16] of any dtype as rows [..., M, along, cells]."""
    *others, num_panels, along, cells, _ = panels.shape
    rows = panels.new_empty(*others, num_panels * PANEL_ROWS, along, cells)
    as_panels(rows).copy_(panels)
    return rows


def panels_of(rows: int | slice | Tensor, count: int) -> slice:
    """Return the panels that consist of these rows, out of `count` rows (int64 [n], where it is a tensor).

    Raises ValueError if the rows are no slice of whole panels.
    """
    if isinstance(rows, slice):
        start, stop, step = rows.indices(count)
        if start % PANEL_ROWS == 0 and stop % PANEL_ROWS == 0 and step == 1:
            return slice(start // PANEL_ROWS, stop // PANEL_ROWS)
        rows_named = f"rows {start} to {stop} by {step}"
    else:
        rows_named = f"rows {rows}"
    raise ValueError(f"{rows_named}: expected panels of {PANEL_ROWS}")
