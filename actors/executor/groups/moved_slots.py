"""Moves of accepted drafts that a group's leader has made, until the other members are told. Knows no torch."""

from __future__ import annotations

from collections import deque

import numpy as np
import numpy.typing as npt

from pageant.protocol.ranks import MoveSlots

__all__ = ["MovedSlots"]

Int64 = npt.NDArray[np.int64]


class MovedSlots:
    """Queue of moves. The computing thread adds to it, and the actor's loop takes."""

    def __init__(self) -> None:
        self._moved: deque[MoveSlots] = deque()

    def add(self, sources: Int64, destinations: Int64) -> None:
        """Add a move from slots, int64 [S], to others, int64 [S], if there are any."""
        if len(sources):
            self._moved.append(MoveSlots(sources=sources, destinations=destinations))

    def take(self) -> list[MoveSlots]:
        """Return the moves since the last call, in order."""
        return [self._moved.popleft() for _ in range(len(self._moved))]
