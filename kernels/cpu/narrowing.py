"""Which logits are needed: those that masks leave.

Between the two calls here, those of the rows that are needed whole can be computed, and masks waited for. Rows have
slots in a table of masks, as for `CpuKernels.sample_by_table`: UNMASKED may draw anything, and VOID draws nothing.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from pageant.kernels.base import NeededLogits
from pageant.kernels.cpu.compiled import CompiledKernels

__all__ = ["UNMASKED", "VOID", "Narrowed", "NarrowingKernels", "Rest"]

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
    came: Tensor
    spared: Tensor
    began: Tensor


class Rest(NamedTuple):
    """The logits that are needed then, where each row is, int64 [R], and how many rows are not needed whole, int64
    [1]."""

    needed: NeededLogits
    places: Tensor
    narrow: Tensor


class NarrowingKernels(CompiledKernels):
    """What narrows, and what waits for masks meanwhile: as part of recordings."""

    def gate(
        self, table: Tensor, slots: Tensor, expected: Tensor, patience: Tensor, *, ends: bool = True
    ) -> Tensor:
        """Waits until each table[slots[i]] is expected[i], but where slots[i] is negative. A recording ends with this
        call, if it `ends` it, where that takes too long when it is played.

        Args:
            table: int64 [S], which another thread may be writing to: what it wrote before that is there then.
            slots, expected: int64 [n].
            patience: int64 [n + 1], nanoseconds to wait for at most, by how many of them are missing.

        Returns:
            int64 [3]: 1 if all came, else 0, the nanoseconds that were waited, and a steady clock's when that began.
        """
        outcome = torch.empty(3, dtype=torch.int64)
        pointers = [part.data_ptr() for part in (table, slots, expected)]
        self._library.gate(*pointers, len(slots), patience.data_ptr(), ends, outcome.data_ptr())
        return outcome

    def narrow(
        self,
        hidden: Tensor,
        slots: Tensor,
        bits: Tensor,
        table: Tensor,
        expected: Tensor,
        patience: Tensor,
    ) -> Narrowed:
        """Put hidden states [R, N] in order: by their masks, if all are there; by what is in the table, if they will be
        waited for; else all of them are needed whole.

        Args:
            slots: int64 [R].
            bits: int32 [S, V / 32 rounded up], the masks of the table.
            table, expected: see `gate`.
            patience: int64 [R + 1 or more], nanoseconds to wait at most, by how many masks are missing.
        """
        rows = len(hidden)
        ordered = hidden.new_empty(*hidden.shape)
        order, needed, waiting, came, spared, began = (
            torch.empty(n, dtype=torch.int64) for n in (rows, 3, rows + 1, 1, 1, 1)
        )
        self._library.narrow(
            *_rows(hidden),
            *_masks(slots, bits, table, expected),
            patience.data_ptr(),
            *(part.data_ptr() for part in (ordered, order, needed, waiting, came, spared, began)),
        )
        return Narrowed(ordered, order, NeededLogits(needed), waiting, came, spared, began)

    def narrow_rest(
        self,
        hidden: Tensor,
        slots: Tensor,
        bits: Tensor,
        table: Tensor,
        expected: Tensor,
        narrowed: Narrowed,
    ) -> Rest:
        """Return what is needed besides, now: rows whose masks have not come are needed whole. Mutates what was
        narrowed, for the same arguments: its order goes by the masks that have come."""
        rows, words = len(hidden), bits.shape[1]
        places, narrow_rows = (torch.empty(n, dtype=torch.int64) for n in (rows, 1))
        needed = torch.empty(3 + 2 * words, dtype=torch.int64)  # at most every other strip of 16 tokens
        self._library.narrow_rest(
            *_rows(hidden),
            *_masks(slots, bits, table, expected),
            narrowed.hidden.data_ptr(),
            narrowed.order.data_ptr(),
            narrowed.needed.which.data_ptr(),
            *(part.data_ptr() for part in (places, needed, narrow_rows)),
        )
        return Rest(NeededLogits(needed), places, narrow_rows)


def _rows(hidden: Tensor) -> tuple[int, ...]:
    (rows, size), stride = hidden.shape, hidden.stride(0)
    return hidden.data_ptr(), stride * hidden.itemsize, size * hidden.itemsize, rows


def _masks(slots: Tensor, bits: Tensor, table: Tensor, expected: Tensor) -> tuple[int, ...]:
    return slots.data_ptr(), bits.data_ptr(), bits.shape[1], table.data_ptr(), expected.data_ptr()
