"""Drafts of one row, and of all rows of a step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pageant.protocol.arrays import int32
from pageant.protocol.verification import Drafts, within

__all__ = ["NO_ROW_DRAFTS", "RowDrafts", "join_drafts", "split_drafts"]

Int32 = npt.NDArray[np.int32]


class RowDrafts(NamedTuple):
    """Drafts of one row; see `Drafts`."""

    token_ids: Int32
    parents: Int32 = int32()

    def __len__(self) -> int:
        return len(self.token_ids)

    def first(self, count: int) -> RowDrafts:
        """Return the first `count` drafts. Parents come before children, so that they need none of the others."""
        return RowDrafts(self.token_ids[:count], self.parents[:count])

    def chain(self) -> RowDrafts:
        """Return the likeliest path of a tree: each draft's first child."""
        path, at = [], -1
        for index, parent in enumerate(self.parents.tolist()):
            if parent == at:
                path.append(index)
                at = index
        return RowDrafts(self.token_ids[path]) if len(self.parents) else self


NO_ROW_DRAFTS = RowDrafts(int32())


def join_drafts(counts: Int32, guesses: Sequence[RowDrafts]) -> Drafts:
    """Return the drafts of a step.

    counts: int32 [R]: the drafts of each row. guesses: the drafts of the rows that have any, in order.
    """
    token_ids = np.concatenate([guess.token_ids for guess in guesses])
    if not any(len(guess.parents) for guess in guesses):
        return Drafts(counts, token_ids, int32())
    chain = within(int32([len(guess) for guess in guesses])) - 1
    ends = np.cumsum([len(guess) for guess in guesses])[:-1]
    parents = [
        guess.parents if len(guess.parents) else mine
        for guess, mine in zip(guesses, np.split(chain, ends), strict=True)
    ]
    return Drafts(counts, token_ids, np.concatenate(parents))


def split_drafts(counts: Int32, token_ids: Int32, parents: Int32) -> list[RowDrafts]:
    """Return the drafts of each of R rows.

    counts: int32 [R]. token_ids: int32 [sum of counts]. parents: the same, or empty for chains.
    """
    ends = np.cumsum(counts)[:-1]
    parts = np.split(token_ids, ends)
    if not len(parents):
        return [RowDrafts(part) for part in parts]
    return [RowDrafts(*pair) for pair in zip(parts, np.split(parents, ends), strict=True)]
