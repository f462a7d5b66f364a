"""Narrowing of logits: computes only those that masks leave.

Between `narrow` and `narrow_rest`, the logits of rows that are needed whole can be computed while masks are
awaited. Rows have slots in a table of masks, as for `CpuKernels.sample_by_table`: a row in slot UNMASKED may
sample any token, and one in slot VOID samples none.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from pageant.kernels.base import NeededLogits
from pageant.kernels.cpu.compiled import CompiledKernels

__all__ = ["UNMASKED", "VOID", "Narrowed", "NarrowingKernels", "Rest"]

# Slots of rows without a mask and of void rows, as in slots.h.
UNMASKED, VOID = -1, -2


class Narrowed(NamedTuple):
    """The outcome of `narrow`.

    Hidden states [R, N] are in the `order` in which they are needed, int64 [R]: first those whose logits are
    needed whole, which are `needed`. `patience`, int64 [R + 1], is the time to wait for masks then: none where
    no rows are left. `spared`, int64 [1], is the share of all logits that need not be computed with the masks
    in the table, in millionths. `began`, int64 [1], is the time at which all of this was known, in nanoseconds
    of a steady clock.
    """

    hidden: Tensor
    order: Tensor
    needed: NeededLogits
    patience: Tensor
    came: Tensor
    spared: Tensor
    began: Tensor


class Rest(NamedTuple):
    """The outcome of `narrow_rest`: the logits that are needed then, and the place of each row, int64 [R].

    `narrow`, int64 [1], is the number of rows that are not needed whole.
    """

    needed: NeededLogits
    places: Tensor
    narrow: Tensor


class NarrowingKernels(CompiledKernels):
    """The `Kernels` of recordings that narrow logits by masks, and wait for masks."""

    def gate(
        self, table: Tensor, slots: Tensor, expected: Tensor, patience: Tensor, *, ends: bool = True
    ) -> Tensor:
        """Wait until each table[slots[i]] is expected[i], except where slots[i] is negative.

        If that takes too long at a replay and `ends` is set, the recording ends with this call.

        Args:
            table: int64 [S], which another thread may be writing to. Its earlier writes are visible after the
                call.
            slots, expected: int64 [n].
            patience: int64 [n + 1], the most nanoseconds to wait, by how many of them are missing.

        Returns:
            int64 [3]: 1 if all came, else 0; the nanoseconds waited; and a steady clock's time at the
            beginning.
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
        """Put hidden states [R, N] in the order in which their logits are needed.

        The order goes by their masks if all are there, and by the masks in the table if the others will be
        awaited. Otherwise all rows are needed whole.

        Args:
            slots: int64 [R].
            bits: int32 [S, V / 32 rounded up], the masks of the table.
            table, expected: see `gate`.
            patience: int64 [R + 1 or more], the most nanoseconds to wait, by how many masks are missing.
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
        """Return the further logits that are needed now: rows whose masks have not come are needed whole.

        Mutates `narrowed`, which `narrow` returned for the same arguments (hidden [R, N], slots int64 [R]): its
        order now goes by the masks that have come.
        """
        rows, words = len(hidden), bits.shape[1]
        places, narrow_rows = (torch.empty(n, dtype=torch.int64) for n in (rows, 1))
        # At most every other panel of 16 tokens is needed.
        needed = torch.empty(3 + 2 * words, dtype=torch.int64)
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
