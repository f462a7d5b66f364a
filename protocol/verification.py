"""Verification of drafts. Scheduler and executor reach the same result, each from its own data.

A row with n drafts has n + 1 places in its step, and a token is sampled at each: at place 0 after the known
tokens, at place i + 1 after draft i. A draft is right if it equals the token that was sampled at the place
before it. In a chain that is the place of the draft before. In a tree it is the place of the draft's parent:
an earlier draft of the row, by index, or `NO_PARENT` for the known tokens. A draft after which no token could
be sampled (`NO_TOKEN`) is not accepted either.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from pageant.protocol.arrays import NO_TOKEN, BoolVector, Int32Vector, int32

__all__ = ["NO_DRAFTS", "NO_PARENT", "NO_TOKEN", "Drafts", "Verdict", "spread", "within"]

N = TypeVar("N", bound=np.generic)

# The parent of a draft that follows the known tokens.
NO_PARENT = -1
MISSING = NO_TOKEN


class Verdict(NamedTuple):
    """The accepted drafts of N rows."""

    accepted: Int32Vector
    """int32 [N]: the number of drafts of each row that were right, one after another."""
    places: Int32Vector
    """int32 [sum of accepted + 1]: the places whose tokens stand, among the places of all rows: accepted[i] +
    1 for row i.
    """


class Drafts(NamedTuple):
    """The drafts of N rows."""

    counts: Int32Vector
    """int32 [N]: the number of drafts of each row."""
    token_ids: Int32Vector
    """int32 [sum of counts]: the drafts, row by row."""
    parents: Int32Vector
    """int32 [sum of counts]: the parent of each; or empty for chains, where each draft follows the one
    before.
    """

    def __bool__(self) -> bool:
        return len(self.token_ids) > 0

    def verify(self, drawn: Int32Vector) -> Verdict:
        """Compare the drafts with `drawn`, int32 [places]: the token that was sampled at each place."""
        first = self.first_places
        if not self:
            return Verdict(np.zeros(len(self.counts), np.int32), first)
        if len(self.parents):
            return _verify_trees(self, drawn, first)
        accepted = _right_in_chains(self, drawn)
        return Verdict(accepted, np.repeat(first, accepted + 1) + within(accepted + 1))

    @property
    def first_places(self) -> Int32Vector:
        """Return the first place of each row among the places of all rows: int32 [N]."""
        return (np.cumsum(self.counts + 1) - self.counts - 1).astype(np.int32)

    @property
    def depths(self) -> Int32Vector:
        """Return the number of drafts before each draft on its path: int32 [sum of counts]."""
        if not len(self.parents):
            return within(self.counts)
        found: list[int] = []
        start = 0
        for count in self.counts.tolist():
            for parent in self.parents[start : start + count].tolist():
                found.append(0 if parent == NO_PARENT else found[start + parent] + 1)
            start += count
        return int32(found)

    @property
    def lengths(self) -> Int32Vector:
        """Return the length of each row's longest path: int32 [N]."""
        if not len(self.parents):
            return self.counts
        longest = np.zeros(len(self.counts), np.int32)
        np.maximum.at(longest, np.repeat(np.arange(len(self.counts)), self.counts), self.depths + 1)
        return longest

    def paths(self, rows: Sequence[bool]) -> dict[int, list[int]]:
        """Return, by place, the drafts on the path to that place, from the first on.

        Args:
            rows: N flags: the rows whose places are wanted. Places that follow no draft are left out.
        """
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
    """Return 0, 1, ... within each of the runs whose lengths are `counts`: int32 [N] in, int32 [sum of
    counts] out.
    """
    # Most steps compute the next token of each sequence.
    if (counts == 1).all():
        return np.zeros(len(counts), np.int32)
    ends = counts.cumsum(dtype=np.int32)
    return np.arange(counts.sum(), dtype=np.int32) - (ends - counts).repeat(counts)


def spread(values: npt.NDArray[N], counts: Int32Vector) -> npt.NDArray[N]:
    """Return `counts[i]` copies of `values[i]`, one after another: [N] of any dtype in, [sum of counts] out,
    in new memory.
    """
    return values.copy() if (counts == 1).all() else values.repeat(counts)


def _right_in_chains(drafts: Drafts, drawn: Int32Vector) -> Int32Vector:
    counts = drafts.counts
    rows = np.repeat(np.arange(len(counts)), counts)
    place = within(counts)
    at = np.arange(len(rows)) + rows
    wrong: BoolVector = (drawn[at] != drafts.token_ids) | (drawn[at + 1] == NO_TOKEN)
    first_wrong = counts.astype(np.int32).copy()
    np.minimum.at(first_wrong, rows[wrong], place[wrong])
    return first_wrong


def _verify_trees(drafts: Drafts, drawn: Int32Vector, first: Int32Vector) -> Verdict:
    """Walk down each row's tree. Of siblings that are the same token, the first counts."""
    accepted: list[int] = []
    places: list[int] = []
    tokens, start = drawn.tolist(), 0
    for place, count in zip(first.tolist(), drafts.counts.tolist(), strict=True):
        at, path = NO_PARENT, [place]
        # Parents come before their children, so that one pass finds the whole path.
        for index in range(count):
            is_next = int(drafts.parents[start + index]) == at and tokens[place + 1 + index] != NO_TOKEN
            if is_next and int(drafts.token_ids[start + index]) == tokens[path[-1]]:
                at = index
                path.append(place + 1 + index)
        accepted.append(len(path) - 1)
        places.extend(path)
        start += count
    return Verdict(int32(accepted), int32(places))
