"""The tokens that the states of recurrent layers have taken in, by row of the batch.

Drafts may be wrong, so no state takes them in with the step that verifies them. Those that were right are replayed by
the row's next step. What void rows compute is never taken in.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["RecurrentRows", "StateTokens"]

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]

ALL_TAKEN_IN = np.iinfo(np.int64).max
"""Of a row that has computed nothing yet: it begins where its states are."""


class StateTokens(NamedTuple):
    """Tokens of S sequences that are taken in later than they are computed; see `kernels.base.StateRows`."""

    rows: Int64  # [S]
    replayed: Int64  # [S]
    unsure: Int64  # [S]

    @property
    def are_plain(self) -> bool:
        """Tell whether states take in all of the step's own tokens and no others."""
        return not (self.replayed.any() or self.unsure.any())

    def voided(self, sequences: Int64, query_starts: Int32) -> StateTokens:
        """Return the same, with none of the own tokens of some sequences taken in."""
        unsure = self.unsure.copy()
        unsure[sequences] = np.diff(query_starts)[sequences]
        return self._replace(unsure=unsure)


class RecurrentRows:
    """Rows of a batch whose model is recurrent."""

    def __init__(self, max_num_seqs: int) -> None:
        self._taken_in = np.zeros(max_num_seqs, np.int64)  # tokens, by row

    def add(self, row: int) -> None:
        """Begin with a sequence."""
        self._taken_in[row] = ALL_TAKEN_IN

    def of_step(
        self, rows: Int32, starts: Int32, num_tokens: Int32, draft_counts: Int32 | None
    ) -> StateTokens:
        """Return what the states take in with a step, of which the last `draft_counts` tokens are drafts.

        rows, starts, num_tokens: [S], the latter without drafts.
        """
        replayed = np.maximum(starts - self._taken_in[rows], 0)
        self._taken_in[rows] = starts + num_tokens
        unsure = np.zeros(len(rows), np.int64) if draft_counts is None else draft_counts.astype(np.int64)
        return StateTokens(rows.astype(np.int64), replayed, unsure)
