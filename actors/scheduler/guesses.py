"""What a drafter said of one row, and of all rows of a step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pageant.protocol.arrays import int32
from pageant.protocol.verification import Drafts, within

__all__ = ["NOTHING", "Guess", "apart", "together"]

Int32 = npt.NDArray[np.int32]


class Guess(NamedTuple):
    """A row's drafts; see `Drafts`."""

    token_ids: Int32
    parents: Int32 = int32()

    def __len__(self) -> int:
        return len(self.token_ids)

    def first(self, count: int) -> Guess:
        """As many, which need none of the others."""
        return Guess(self.token_ids[:count], self.parents[:count])

    def chain(self) -> Guess:
        """Of a tree, the likeliest path: each draft's first child."""
        path, at = [], -1
        for index, parent in enumerate(self.parents.tolist()):
            if parent == at:
                path.append(index)
                at = index
        return Guess(self.token_ids[path]) if len(self.parents) else self


NOTHING = Guess(int32())


def together(counts: Int32, guesses: Sequence[Guess]) -> Drafts:
    """The drafts of those rows that have any."""
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


def apart(counts: Int32, token_ids: Int32, parents: Int32) -> list[Guess]:
    """Each row's."""
    ends = np.cumsum(counts)[:-1]
    parts = np.split(token_ids, ends)
    if not len(parents):
        return [Guess(part) for part in parts]
    return [Guess(*pair) for pair in zip(parts, np.split(parents, ends), strict=True)]
