"""Which drafts of a step were right. Scheduler and executor find the same, each from what it has.

A row with n drafts has n + 1 places in its step, and at each a token is drawn: at place 0 after what was known, at
place i + 1 after draft i. A draft is right while it equals the token that was drawn after what comes before it. That is
the draft before, or in a tree its parent: an earlier draft of the row, by index, or -1 for what was known. A draft
after which no token could be drawn (MISSING) is not taken either.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from pageant.protocol.arrays import BoolVector, Int32Vector, int32

__all__ = ["MISSING", "NO_DRAFTS", "Drafts", "Verdict", "spread", "within"]

N = TypeVar("N", bound=np.generic)

MISSING = -1  # no token id


class Verdict(NamedTuple):
    """Of N rows.

    Attributes:
        accepted: [N], how many drafts of each were right, one after another.
        places: accepted[i] + 1 for each row, among the places of all rows: those whose tokens stand.
    """

    accepted: Int32Vector
    places: Int32Vector


class Drafts(NamedTuple):
    """Those of N rows.

    Attributes:
        counts: [N], how many each has.
        token_ids: of all, row by row.
        parents: of each, or none at all where each follows the one before it.
    """

    counts: Int32Vector
    token_ids: Int32Vector
    parents: Int32Vector

    def __bool__(self) -> bool:
        return len(self.token_ids) > 0

    def verify(self, drawn: Int32Vector) -> Verdict:
        """Compares them with what was drawn at each place."""
        first = self.first_places
        if not self:
            return Verdict(np.zeros(len(self.counts), np.int32), first)
        if len(self.parents):
            return _verify_trees(self, drawn, first)
        accepted = _right_in_chains(self, drawn)
        return Verdict(accepted, np.repeat(first, accepted + 1) + within(accepted + 1))

    @property
    def first_places(self) -> Int32Vector:
        """[N]: of the places of all rows, the first of each."""
        return (np.cumsum(self.counts + 1) - self.counts - 1).astype(np.int32)

    @property
    def depths(self) -> Int32Vector:
        """How many drafts each has before it on its path."""
        if not len(self.parents):
            return within(self.counts)
        found: list[int] = []
        start = 0
        for count in self.counts.tolist():
            for parent in self.parents[start : start + count].tolist():
                found.append(0 if parent < 0 else found[start + parent] + 1)
            start += count
        return int32(found)

    @property
    def lengths(self) -> Int32Vector:
        """[N]: of each row's longest path."""
        if not len(self.parents):
            return self.counts
        longest = np.zeros(len(self.counts), np.int32)
        np.maximum.at(longest, np.repeat(np.arange(len(self.counts)), self.counts), self.depths + 1)
        return longest

    def paths(self, rows: Sequence[bool]) -> dict[int, list[int]]:
        """By place, for those of some rows that follow any draft: these drafts, from the first on."""
        found: dict[int, list[int]] = {}
        start = place = 0
        for wanted, count in zip(rows, self.counts.tolist(), strict=True):
            for index in range(count) if wanted else ():
                parent = int(self.parents[start + index]) if len(self.parents) else index - 1
                found[place + 1 + index] = [
                    *found.get(place + 1 + parent, []),
                    int(self.token_ids[start + index]),
                ]
            start, place = start + count, place + count + 1
        return found


NO_DRAFTS = Drafts(int32(), int32(), int32())


def within(counts: Int32Vector) -> Int32Vector:
    """0, 1, ... within each of the runs that `counts` gives the lengths of."""
    if (counts == 1).all():  # as most are, where each sequence has its next token
        return np.zeros(len(counts), np.int32)
    ends = counts.cumsum(dtype=np.int32)
    return np.arange(counts.sum(), dtype=np.int32) - (ends - counts).repeat(counts)


def spread(values: npt.NDArray[N], counts: Int32Vector) -> npt.NDArray[N]:
    """`counts[i]` times `values[i]`, one after another, in memory of their own."""
    return values.copy() if (counts == 1).all() else values.repeat(counts)


def _right_in_chains(drafts: Drafts, drawn: Int32Vector) -> Int32Vector:
    counts = drafts.counts
    rows = np.repeat(np.arange(len(counts)), counts)
    place = within(counts)
    at = np.arange(len(rows)) + rows
    wrong: BoolVector = (drawn[at] != drafts.token_ids) | (drawn[at + 1] == MISSING)
    first_wrong = counts.astype(np.int32).copy()
    np.minimum.at(first_wrong, rows[wrong], place[wrong])
    return first_wrong


def _verify_trees(drafts: Drafts, drawn: Int32Vector, first: Int32Vector) -> Verdict:
    """Walks down each row's tree; of siblings that are the same token, the first counts."""
    accepted: list[int] = []
    places: list[int] = []
    tokens, start = drawn.tolist(), 0
    for place, count in zip(first.tolist(), drafts.counts.tolist(), strict=True):
        at, path = -1, [place]
        # Parents come before their children, so that one pass finds the whole path.
        for index in range(count):
            is_next = int(drafts.parents[start + index]) == at and tokens[place + 1 + index] != MISSING
            if is_next and int(drafts.token_ids[start + index]) == tokens[path[-1]]:
                at = index
                path.append(place + 1 + index)
        accepted.append(len(path) - 1)
        places.extend(path)
        start += count
    return Verdict(int32(accepted), int32(places))
