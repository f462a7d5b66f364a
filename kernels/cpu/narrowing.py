"""Which logits are needed: those that masks leave.

Between the two calls here, those of the rows that are needed whole can be computed, and masks waited for. Rows have
slots in a table of masks, as for `CpuKernels.sample_by_table`: UNMASKED may draw anything, and VOID draws nothing.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from pageant.kernels.base import NeededLogits
from pageant.kernels.cpu.library import Library

__all__ = ["UNMASKED", "VOID", "Narrowed", "Rest", "narrow", "narrow_rest"]

UNMASKED, VOID = -1, -2  # as in slots.h


class Narrowed(NamedTuple):
    """Hidden states [R, N] in the `order` in which they are needed, int64 [R]: first those whose logits are needed
    whole, which `needed` is.

    `patience` int64 [R + 1] is for how long masks are to be waited for then: not at all where no rows are left.
    `spared` int64 [1] is what share of all logits need not be computed with masks as they are in the table, in
    millionths; `began` int64 [1] is when all of this was known, in nanoseconds of a steady clock.
    """

    hidden: Tensor
    order: Tensor
    needed: NeededLogits
    patience: Tensor
    spared: Tensor
    began: Tensor


class Rest(NamedTuple):
    """The logits that are needed then, where each row is, int64 [R], and how many rows are not needed whole, int64
    [1]."""

    needed: NeededLogits
    places: Tensor
    narrow: Tensor


def narrow(
    library: Library, hidden: Tensor, slots: Tensor, bits: Tensor, came: Tensor, patience: Tensor
) -> Narrowed:
    """Put hidden states [R, N] in order: by their masks, if they are there; by what is in the table, if they will be
    waited for; else all of them are needed whole.

    Args:
        slots: int64 [R].
        bits: int32 [S, V / 32 rounded up], the table.
        came: int64 [1 or more], whose first is 0 where masks are missing.
        patience: int64 [R + 1 or more], nanoseconds to wait at most, by how many masks are missing.
    """
    ordered = hidden.new_empty(*hidden.shape)
    rows = len(hidden)
    order, needed, waiting, spared, began = (
        torch.empty(n, dtype=torch.int64) for n in (rows, 3, rows + 1, 1, 1)
    )
    library.narrow(
        *_rows(hidden),
        *_masks(slots, bits),
        came.data_ptr(),
        patience.data_ptr(),
        *(part.data_ptr() for part in (ordered, order, needed, waiting, spared, began)),
    )
    return Narrowed(ordered, order, NeededLogits(needed), waiting, spared, began)


def narrow_rest(
    library: Library,
    hidden: Tensor,
    slots: Tensor,
    bits: Tensor,
    table: Tensor,
    expected: Tensor,
    narrowed: Narrowed,
) -> Rest:
    """Return what is needed besides, now. Mutates what was narrowed: its order goes by the masks that have come.

    Args:
        hidden, slots, bits: as before.
        table, expected: see `CpuKernels.gate`; rows whose masks have not come are needed whole.
    """
    rows, words = len(hidden), bits.shape[1]
    places, narrow_rows = (torch.empty(n, dtype=torch.int64) for n in (rows, 1))
    needed = torch.empty(3 + 2 * words, dtype=torch.int64)  # at most every other strip of 16 tokens
    library.narrow_rest(
        *_rows(hidden),
        *_masks(slots, bits),
        table.data_ptr(),
        expected.data_ptr(),
        narrowed.hidden.data_ptr(),
        narrowed.order.data_ptr(),
        narrowed.needed.which.data_ptr(),
        *(part.data_ptr() for part in (places, needed, narrow_rows)),
    )
    return Rest(NeededLogits(needed), places, narrow_rows)


def _rows(hidden: Tensor) -> tuple[int, ...]:
    (rows, size), stride = hidden.shape, hidden.stride(0)
    return hidden.data_ptr(), stride * hidden.itemsize, size * hidden.itemsize, rows


def _masks(slots: Tensor, bits: Tensor) -> tuple[int, ...]:
    return slots.data_ptr(), bits.data_ptr(), bits.shape[1]
