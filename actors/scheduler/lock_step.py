"""Rows in lock-step: those that speculate, of which nothing is planned before their last tokens are known."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Int32 = npt.NDArray[np.int32]
Bool = npt.NDArray[np.bool_]


class LockStep:
    """Rows of the batch that are in lock-step, and the drafts that they have or wait for.

    All arrays have one entry per row of the batch. Entries of rows without a request mean nothing.
    """

    def __init__(self, num_rows: int) -> None:
        # Some row was in lock-step before. False spares the arrays below.
        self.has_begun = False
        # bool: planned only when all sampled tokens are known.
        self._in_lock_step = np.zeros(num_rows, np.bool_)
        # bool: drafts are on their way; nothing of the row is planned.
        self._awaits_drafts = np.zeros(num_rows, np.bool_)
        # int32: drafts for the next step.
        self._num_drafts = np.zeros(num_rows, np.int32)

    def admit(self, row: int) -> None:
        """Begin a row's new request out of lock-step, and without drafts."""
        self._in_lock_step[row] = self._awaits_drafts[row] = False
        self._num_drafts[row] = 0

    def hold(self, rows: Int32, in_lock_step: Bool, awaiting_drafts: Bool | None = None) -> None:
        """Mark rows that are not planned ahead, and rows that wait for drafts.

        rows: int32 [N]. in_lock_step, awaiting_drafts: bool [N]; None is False for all.
        """
        self._in_lock_step[rows] = in_lock_step
        self._awaits_drafts[rows] = False if awaiting_drafts is None else awaiting_drafts
        self._num_drafts[rows] = 0
        self.has_begun |= bool(in_lock_step.any())

    def drafted(self, row: int, count: int) -> None:
        """Record that `count` drafts have come for a row; 0 if it waited in vain."""
        self._awaits_drafts[row] = False
        self._num_drafts[row] = count

    def drop_drafts(self, rows: Int32) -> None:
        """Forget the drafts of `rows`, int32 [N]."""
        self._num_drafts[rows] = 0

    def planned(self, rows: Int32) -> None:
        """Note that a plan has the drafts of `rows`, int32 [N]."""
        if self.has_begun:
            self.drop_drafts(rows)

    def are_in(self, rows: Int32) -> Bool:
        """Return which of `rows`, int32 [N], are not planned ahead: bool [N]."""
        return self._in_lock_step[rows]

    def count(self, rows: Int32) -> int:
        """Return how many of `rows`, int32 [N], are not planned ahead."""
        return int(np.count_nonzero(self._in_lock_step[rows]))

    def awaits_drafts(self, row: int) -> bool:
        """Tell whether a row waits for drafts."""
        return bool(self._awaits_drafts[row])

    def are_held(self, rows: Int32, num_pending: Int32) -> Bool:
        """Return which of `rows`, int32 [N], must wait until their drafts or sampled tokens are known: bool [N].

        num_pending: int32, tokens that steps under way sample, of every row of the batch.
        """
        held: Bool = self._awaits_drafts[rows] | (self._in_lock_step[rows] & (num_pending[rows] > 0))
        return held

    def drafts_within(self, rows: Int32, decoding: Bool, budget: int) -> Int32:
        """Return how many drafts of each row the budget has room for, row after row: int32 [N].

        rows: int32 [N]. decoding: bool [N], which of them may have drafts.
        """
        if not self.has_begun:
            return np.zeros(len(rows), np.int32)
        drafts = np.where(decoding, self._num_drafts[rows], np.int32(0))
        before = np.cumsum(drafts) - drafts
        fitting: Int32 = np.clip(budget - before, 0, drafts).astype(np.int32)
        return fitting
