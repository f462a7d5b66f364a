"""Waves: parts of the running rows that decode in turn, so that each stage of a pipeline can compute another plan.

A row's next token cannot be computed before its last one has passed all stages. So each plan decodes the rows of one
wave, and there are as many waves as stages. With one stage, all rows are of one wave.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["Waves"]

Int32 = npt.NDArray[np.int32]
Bool = npt.NDArray[np.bool_]

PENDING_MAX = 2
"""Tokens of a row that plans under way may sample at once, where there are several waves."""


class Waves:
    """The wave of each row, and whose turn it is.

    Args:
        num_rows: rows of the batch.
        count: stages of the pipeline.
    """

    def __init__(self, num_rows: int, count: int = 1) -> None:
        self.count = count
        # int8: each row's wave; of rows without a request it means nothing.
        self._of_row = np.zeros(num_rows, np.int8)
        # The wave that the next plan decodes, if any row of it can be.
        self._next = 0
        # The wave that was chosen last.
        self._turn = 0

    def admit(self, row: int, running: Int32) -> None:
        """Put a row into the wave with the fewest of the running rows, int32 [N]."""
        if self.count > 1:
            self._of_row[row] = np.bincount(self._of_row[running], minlength=self.count).argmin()

    def are_in_turn(self, rows: Int32, decoding: Bool, num_pending: Int32) -> Bool:
        """Return which of the running rows the next plan may compute: bool [N].

        rows: int32 [N]. decoding: bool [N], rows that have one token to compute. num_pending: int32 by row of the
        batch, tokens that plans under way sample.
        """
        self._balance(rows, num_pending)
        free = num_pending[rows] < PENDING_MAX
        for ahead in range(self.count):
            turn = (self._next + ahead) % self.count
            mine = self._of_row[rows] == turn
            if (mine & decoding & free).any():
                self._turn = turn
                chosen: Bool = free & (mine | ~decoding)
                return chosen
        self._turn = self._next
        prefills: Bool = free & ~decoding
        return prefills

    def planned(self) -> None:
        """Note that what was chosen is planned: the next wave is next."""
        self._next = (self._turn + 1) % self.count

    def _balance(self, rows: Int32, num_pending: Int32) -> None:
        """Move rows from the largest wave to the smallest, if they differ by more than a quarter of all."""
        counts = np.bincount(self._of_row[rows], minlength=self.count)
        more = int(counts.max() - counts.min())
        if more > max(1, len(rows) // 4):
            of_largest = rows[(self._of_row[rows] == counts.argmax()) & (num_pending[rows] == 0)]
            self._of_row[of_largest[: more // 2]] = counts.argmin()
