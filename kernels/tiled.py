"""Weights that lie as matrix units take them: in tiles of 16 rows by 32 inputs, one after another.

A product with a tile reads 64 bytes from each of 16 rows. Where rows are whole those lie kilobytes apart, mostly in the
same few sets of the nearest cache, which cannot hold what comes next beside what is used now; in a tile they are one
piece of memory. Tiles follow each other along a strip of 16 rows, so that strips lie as rows did.

Inside of a tile, pairs of inputs come first: what a unit takes as its second matrix. So the first is x, as it lies, and
results come in rows too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pageant.kernels.memory import Pages
from pageant.kernels.quantized import Weight
from pageant.kernels.strips import STRIP, as_rows, as_strips, strips_of

__all__ = ["LinearWeight", "TiledWeight", "empty_tiled", "fit_tiles"]

_INPUTS = 32  # of a tile
_PAIRS = {2: torch.int32, 4: torch.int64}  # what copies two numbers at once, by the bytes of one


@dataclass(frozen=True, eq=False, slots=True)
class TiledWeight:
    """A matrix [M, N], or some strips of one."""

    tiles: Tensor
    """[M / 16, N / 32, 16 pairs of inputs, 16 rows, 2], contiguous."""

    @property
    def shape(self) -> tuple[int, int]:
        """(M, N)."""
        strips, along = self.tiles.shape[:2]
        return strips * STRIP, along * _INPUTS

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return self.tiles.nbytes

    def __getitem__(self, rows: slice) -> TiledWeight:
        """Some rows, a view. Raises ValueError where they are not whole strips."""
        return TiledWeight(self.tiles[strips_of(rows, self.shape[0])])

    def fill(self, weight: Tensor) -> None:
        """Take the numbers of a tensor [M, N], cast on the way."""
        whole = weight.to(self.tiles.dtype).contiguous()
        if whole.storage_offset() % 2:  # where pairs cannot begin
            whole = whole.clone()
        pairs = self._pairs()
        pairs.copy_(as_strips(torch.unflatten(whole.view(pairs.dtype), 1, (-1, _INPUTS // 2))))

    def plain(self) -> Tensor:
        """Return the tensor [M, N] that it stands for, a copy."""
        return as_rows(self._pairs()).view(self.tiles.dtype).view(self.shape)

    def _pairs(self) -> Tensor:
        """The tiles with each pair as one number: [M / 16, N / 32, 16, 16]."""
        return self.tiles.view(_PAIRS[self.tiles.itemsize]).squeeze(-1)


LinearWeight = Weight | TiledWeight
"""What `Kernels.linear` takes."""


def fit_tiles(rows: Sequence[int], inputs: int) -> bool:
    """Whether a matrix that is put together from so many rows each can lie in tiles."""
    return inputs % _INPUTS == 0 and all(count % STRIP == 0 for count in rows)


def empty_tiled(shape: tuple[int, int], dtype: torch.dtype, pages: Pages) -> TiledWeight:
    """Room for a weight whose rows and inputs fit, filled with whatever was there before."""
    rows, inputs = shape
    return TiledWeight(pages.empty((rows // STRIP, inputs // _INPUTS, _INPUTS // 2, STRIP, 2), dtype))
