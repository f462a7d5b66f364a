"""The rows of a step, by columns: which requests it computes, which of their tokens, and what it samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from pageant.protocol.arrays import bools, int32, int64

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class ScheduledRows:
    """The scheduled rows of a step, by columns of length R.

    In a multi-step plan each step computes one of the row's tokens, and samples the next.
    """

    serials: Int64
    """int64 [R]: the request of each row."""
    rows: Int32
    """int32 [R]: the row of the batch."""
    starts: Int32
    """int32 [R]: the position of the first token to compute."""
    lengths: Int32
    """int32 [R]: the number of tokens to compute."""
    draws: Bool
    """bool [R]: the tokens are the request's last known ones, and a token is sampled after them."""
    drafts: Int32
    """int32 [R]: the most drafts that follow them; 0 unless `draws`."""
    num_steps: int = 1
    """The steps of a multi-step plan; else 1."""

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def num_tokens(self) -> int:
        """Return the number of tokens that are computed, drafts included."""
        return int(self.lengths.sum() + self.drafts.sum())

    @property
    def ends(self) -> Int32:
        """Return the number of tokens that each request needs slots for: int32 [R]."""
        ends: Int32 = self.starts + self.lengths + self.drafts
        return ends

    @classmethod
    def of(
        cls,
        serials: Sequence[int] = (),
        rows: Sequence[int] = (),
        starts: Sequence[int] = (),
        lengths: Sequence[int] = (),
        draws: Sequence[bool] = (),
    ) -> ScheduledRows:
        """Build scheduled rows without drafts from plain numbers."""
        drafts = np.zeros(len(rows), np.int32)
        return cls(int64(serials), int32(rows), int32(starts), int32(lengths), bools(draws), drafts)

    def _columns(self) -> tuple[npt.NDArray[Any], ...]:
        return self.serials, self.rows, self.starts, self.lengths, self.draws, self.drafts

    def __getitem__(self, some: Bool) -> ScheduledRows:
        serials, rows, starts, lengths, draws, drafts = (column[some] for column in self._columns())
        return ScheduledRows(serials, rows, starts, lengths, draws, drafts, self.num_steps)

    def __add__(self, other: ScheduledRows) -> ScheduledRows:
        assert self.num_steps == other.num_steps == 1, "they would be of one step"
        pairs = zip(self._columns(), other._columns(), strict=True)
        serials, rows, starts, lengths, draws, drafts = map(np.concatenate, pairs)
        return ScheduledRows(serials, rows, starts, lengths, draws, drafts)

    def has_rows(self, rows: Int32) -> bool:
        """Tell whether all of `rows`, int32 [N], are among the scheduled ones."""
        return np.array_equal(rows, self.rows) or bool(np.isin(rows, self.rows).all())

    def repeated(self, num_steps: int) -> ScheduledRows:
        """Return the rows of one token each for `num_steps` steps."""
        if num_steps == 1:
            return self
        return replace(self, lengths=np.full_like(self.lengths, num_steps), num_steps=num_steps)

    def split_at(self, count: int) -> tuple[ScheduledRows, ScheduledRows]:
        """Return the first `count` rows, and the others."""
        if count == len(self):
            return self, ScheduledRows.of()
        first = np.arange(len(self)) < count
        return self[first], self[~first]
