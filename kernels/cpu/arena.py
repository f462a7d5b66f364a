"""Memory that is reused, since getting it from the system costs more than writing to it.

What torch allocates and frees by the megabyte comes in small pages, which the system clears one by one when
they are first touched. For a prompt of 2,048 tokens (0.6 billion weights, four threads of a Xeon) that was
between nothing and a seventh of the processor's time.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from math import prod

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pageant.kernels import memory

__all__ = ["Arena"]

_ALIGNMENT = 64
# Bytes of a huge page. Larger pieces are whole huge pages.
_HUGE = 2 << 20

Piece = npt.NDArray[np.uint8]


class Arena:
    """Memory in pieces, taken by one thread at a time. A piece is reused once no tensor refers to it, in any
    thread.

    For recorded calls (see `recording`) that is as right at every replay as when they were recorded, since
    their order is the same. Any number of recordings may share an arena, as long as no two of them run at once.

    Args:
        lasting: pieces stay for good, as recordings need them to. A piece larger than all before is then twice as
            large as asked for, which takes no memory until it is written to. Logits of one row, of two, and so on,
            then share one piece. Otherwise a piece that is too small is released when a larger one is needed, so
            that there are never more than were in use at once.
    """

    def __init__(self, *, lasting: bool) -> None:
        self._lasting = lasting
        self._free: list[Piece] = []
        self._largest = 0  # bytes of a piece

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Return an uninitialised tensor [*shape] of a dtype, in memory that nothing refers to."""
        size = prod(shape) * dtype.itemsize
        piece = self._take(size)
        view = piece[:size]
        weakref.finalize(view, self._free.append, piece)
        return torch.from_numpy(view).view(dtype).view(tuple(shape))

    def _take(self, size: int) -> Piece:
        fitting = (i for i, piece in enumerate(self._free) if len(piece) >= size)
        best = min(fitting, key=lambda i: len(self._free[i]), default=None)
        if best is not None:
            return self._free.pop(best)
        if not self._lasting and self._free:
            self._free.pop(max(range(len(self._free)), key=lambda i: len(self._free[i])))
        if self._lasting and size >= _HUGE and size > self._largest:
            self._largest = size = 2 * size
        return _new(size)


def _new(size: int) -> Piece:
    if size >= _HUGE:
        pages: Piece = memory.zeros((-(-size // _HUGE) * _HUGE,), torch.uint8, "cpu").numpy()
        return pages
    whole = np.empty(size + _ALIGNMENT, np.uint8)
    start = -whole.ctypes.data % _ALIGNMENT
    return whole[start : start + size]
