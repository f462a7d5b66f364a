"""Which logits are needed: those that masks leave. Between the two calls here, those of the rows that are needed
whole can be computed, and masks waited for."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from pageant.kernels.base import NeededLogits
from pageant.kernels.cpu.library import Library

__all__ = ["Narrowed", "narrow", "narrow_rest"]


class Narrowed(NamedTuple):
    """Hidden states [R, N] in the `order` in which they are needed, int64 [R]: first those whose logits are needed
    whole.

    `needed` is these. `known` int64 [2] is what share of all logits need not be computed if the masks of the others
    stay as they are, in millionths, and when that was known, in nanoseconds of a steady clock.
    """

    hidden: Tensor
    order: Tensor
    needed: NeededLogits
    known: Tensor


class Rest(NamedTuple):
    """The logits that are needed then, where each row is, int64 [R], and what share of all logits, in millionths,
    will have been computed, int64 [1]."""

    needed: NeededLogits
    places: Tensor
    share: Tensor


def narrow(library: Library, hidden: Tensor, slots: Tensor, bits: Tensor) -> Narrowed:
    """Put hidden states [R, N] in order, by the masks that lie in a table, be they the last ones.

    Args:
        slots: int64 [R], which of the table's masks each row has; -1 is none.
        bits: int32 [S, V / 32 rounded up].
    """
    ordered = hidden.new_empty(*hidden.shape)
    order, needed, known = (torch.empty(n, dtype=torch.int64) for n in (len(hidden), 3, 2))
    library.narrow(
        *_rows(hidden),
        *_masks(slots, bits),
        *(part.data_ptr() for part in (ordered, order, needed, known)),
    )
    return Narrowed(ordered, order, NeededLogits(needed), known)


def narrow_rest(
    library: Library, hidden: Tensor, slots: Tensor, bits: Tensor, came: Tensor, narrowed: Narrowed
) -> Rest:
    """Return what is needed besides, now that masks have come. Mutates what was narrowed: its order goes by them.

    Args:
        hidden, slots, bits: as before.
        came: int64 [1 or more], whose first is 0 where masks are missing: then all is needed.
    """
    rows, words = len(hidden), bits.shape[1]
    places, share = (torch.empty(n, dtype=torch.int64) for n in (rows, 1))
    needed = torch.empty(3 + 2 * words, dtype=torch.int64)  # at most every other strip of 16 tokens
    library.narrow_rest(
        *_rows(hidden),
        *_masks(slots, bits),
        came.data_ptr(),
        narrowed.hidden.data_ptr(),
        narrowed.order.data_ptr(),
        narrowed.needed.which.data_ptr(),
        *(part.data_ptr() for part in (places, needed, share)),
    )
    return Rest(NeededLogits(needed), places, share)


def _rows(hidden: Tensor) -> tuple[int, ...]:
    (rows, size), stride = hidden.shape, hidden.stride(0)
    return hidden.data_ptr(), stride * hidden.itemsize, size * hidden.itemsize, rows


def _masks(slots: Tensor, bits: Tensor) -> tuple[int, ...]:
    return slots.data_ptr(), bits.data_ptr(), bits.shape[1]
