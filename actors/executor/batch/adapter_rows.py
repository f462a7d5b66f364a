"""Low-rank adapters of the batch's rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pageant.actors.executor.batch.inputs import AdaptedTokens, Int32
from pageant.protocol.stepping import NewSequence

__all__ = ["AdapterRows"]

NO_ADAPTER = -1
LOST_ADAPTER = -2
"""Marks a row whose adapter is not there any more: whatever it draws is an error."""


class AdapterRows:
    """The adapter of each row, and which adapters there are. Belongs to the actor's loop, as the batch does.

    Args:
        names: the adapters that there are from the beginning.
    """

    def __init__(self, max_num_seqs: int, names: Sequence[str]) -> None:
        # All adapters that there ever were, by their indices.
        self._names = list(names)
        # Indices of those that are there now.
        self._indices = {name: index for index, name in enumerate(names)}
        # int32 [rows]: an index, `NO_ADAPTER` or `LOST_ADAPTER`.
        self._of_row = np.full(max_num_seqs, NO_ADAPTER, np.int32)
        # Why rows with `LOST_ADAPTER` have none.
        self._lost: dict[int, str] = {}

    def add(self, name: str) -> None:
        """Let sequences have this adapter, from the next plan on."""
        self._indices[name] = len(self._names)
        self._names.append(name)

    def remove(self, name: str, why: str) -> None:
        """Let no sequence have this adapter, from the next plan on. Those that had it fail as soon as they draw."""
        index = self._indices.pop(name, None)
        if index is not None:
            rows = np.flatnonzero(self._of_row == index)
            self._of_row[rows] = LOST_ADAPTER
            self._lost |= dict.fromkeys(rows.tolist(), why)

    def clear(self) -> None:
        """Forget every sequence."""
        self._of_row[:] = NO_ADAPTER

    def free(self, rows: Int32) -> None:
        """Forget the sequences of `rows`, int32 [N]."""
        self._of_row[rows] = NO_ADAPTER

    def admit(self, sequence: NewSequence) -> None:
        """Note the adapter of a new sequence. One that is not there any more makes it fail as soon as it draws."""
        self._of_row[sequence.row] = self._index_of(sequence)

    def _index_of(self, sequence: NewSequence) -> int:
        if sequence.adapter is None:
            return NO_ADAPTER
        index = self._indices.get(sequence.adapter)
        if index is None:
            self._lost[sequence.row] = f"the adapter {sequence.adapter!r} is not loaded any more"
            return LOST_ADAPTER
        return index

    def of_step(self, rows: Int32, counts: Int32) -> tuple[AdaptedTokens, ...]:
        """Return which tokens of a step have which adapter. rows, counts: int32 [S], the step's rows and tokens."""
        if not self._names:
            return ()
        adapters = np.repeat(self._of_row[rows], counts)
        return tuple(
            AdaptedTokens(self._names[index], np.flatnonzero(adapters == index))
            for index in np.unique(adapters[adapters >= 0]).tolist()
        )

    def failing(self, draw_rows: Int32) -> dict[int, str]:
        """Return the places of drawing rows, int32 [D], that have lost their adapters, and why."""
        if not self._lost:
            return {}
        rows = draw_rows.tolist()
        lost = np.flatnonzero(self._of_row[draw_rows] == LOST_ADAPTER).tolist()
        return {place: self._lost[rows[place]] for place in lost}
