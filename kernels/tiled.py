"""Weights in tiles of 16 rows by 32 inputs, one after another: the layout that matrix k_blocks take.

A product with a tile reads 64 bytes from each of 16 rows. In a row-major weight those are kilobytes apart,
mostly in the same few sets of the L1 cache, which then cannot hold the next tile beside the present one. A tile
is one contiguous piece of memory. Tiles follow each other along a panel of 16 rows, and panels follow each
other as rows did.

Inside of a tile, pairs of inputs come first, as a matrix unit takes its second operand. The first operand is
then x in row-major order, and results are row-major too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pageant.kernels.memory import Pages
from pageant.kernels.panels import PANEL_ROWS, as_panels, as_rows, panels_of
from pageant.kernels.quantized import Weight

__all__ = ["LinearWeight", "TiledWeight", "empty_tiled", "fit_tiles"]

# Inputs of a tile.
_INPUTS = 32
# The dtype that copies two numbers at once, by the bytes of one.
_PAIRS = {2: torch.int32, 4: torch.int64}


@dataclass(frozen=True, eq=False, slots=True)
class TiledWeight:
    """A matrix [M, N] in tiles, or some panels of one."""

    tiles: Tensor
    """[M / 16, N / 32, 16 pairs of inputs, 16 rows, 2], contiguous."""

    @property
    def shape(self) -> tuple[int, int]:
        """Return (M, N)."""
        panels, along = self.tiles.shape[:2]
        return panels * PANEL_ROWS, along * _INPUTS

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return self.tiles.nbytes

    def __getitem__(self, rows: slice) -> TiledWeight:
        """Return some rows, as a view. Raises ValueError if they are not whole panels."""
        return TiledWeight(self.tiles[panels_of(rows, self.shape[0])])

    def fill(self, weight: Tensor) -> None:
        """Copy a tensor [M, N] of any dtype into the tiles, cast to theirs."""
        whole = weight.to(self.tiles.dtype).contiguous()
        if whole.storage_offset() % 2:  # where pairs cannot begin
            whole = whole.clone()
        pairs = self._pairs()
        pairs.copy_(as_panels(torch.unflatten(whole.view(pairs.dtype), 1, (-1, _INPUTS // 2))))

    def plain(self) -> Tensor:
        """Return a row-major copy [M, N] of the weight, in its dtype."""
        return as_rows(self._pairs()).view(self.tiles.dtype).view(self.shape)

    def _pairs(self) -> Tensor:
        """Return the tiles with each pair as one number: [M / 16, N / 32, 16, 16]."""
        return self.tiles.view(_PAIRS[self.tiles.itemsize]).squeeze(-1)


LinearWeight = Weight | TiledWeight
"""A weight of `Kernels.linear`."""


def fit_tiles(rows: Sequence[int], inputs: int) -> bool:
    """Tell whether a matrix that is concatenated from parts of these numbers of rows can be in tiles."""
    return inputs % _INPUTS == 0 and all(count % PANEL_ROWS == 0 for count in rows)


def empty_tiled(shape: tuple[int, int], dtype: torch.dtype, pages: Pages) -> TiledWeight:
    """Return an uninitialised tiled weight [M, N] of a dtype; `shape` must fit."""
    rows, inputs = shape
    return TiledWeight(
        pages.empty((rows // PANEL_ROWS, inputs // _INPUTS, _INPUTS // 2, PANEL_ROWS, 2), dtype)
    )
