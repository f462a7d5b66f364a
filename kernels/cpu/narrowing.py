"""Narrowing of logits: computes only those that masks leave.

Between `narrow` and `narrow_rest`, the logits of rows that are needed whole can be computed while masks are
awaited. Rows have slots in a table of masks, as for `sample_by_table`: a row in slot UNMASKED may
sample any token, and one in slot VOID samples none.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pageant.kernels.base import Narrowed, NeededLogits, NeededRest
from pageant.kernels.cpu.compiled import CompiledKernels

__all__ = ["NarrowingKernels"]


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
    ) -> NeededRest:
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
        return NeededRest(NeededLogits(needed), places, narrow_rows)


def _rows(hidden: Tensor) -> tuple[int, ...]:
    (rows, size), stride = hidden.shape, hidden.stride(0)
    return hidden.data_ptr(), stride * hidden.itemsize, size * hidden.itemsize, rows


def _masks(slots: Tensor, bits: Tensor, table: Tensor, expected: Tensor) -> tuple[int, ...]:
    return slots.data_ptr(), bits.data_ptr(), bits.shape[1], table.data_ptr(), expected.data_ptr()
