"""Things that came with some sequences of a batch, by row."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, TypeVar

from pageant.protocol.stepping import NewSequence

__all__ = ["HeldRows"]

T = TypeVar("T")


class HeldRows(Generic[T]):
    """Base of what keeps a thing for some rows. Rows without one cost nothing."""

    def __init__(self) -> None:
        self._rows: dict[int, T] = {}

    def clear(self) -> None:
        """Forget every row."""
        self._rows.clear()

    def free(self, rows: Iterable[int]) -> None:
        """Forget some rows."""
        if self._rows:
            for row in rows:
                self._rows.pop(row, None)

    def add(self, sequence: NewSequence) -> None:
        """Take a new sequence, or a resumed one, in place of what was in its row."""
        held = self._held_for(sequence)
        if held is None:
            self._rows.pop(sequence.row, None)
        else:
            self._rows[sequence.row] = held

    def _held_for(self, sequence: NewSequence) -> T | None:
        """Return what is kept for a sequence; None for nothing."""
        raise NotImplementedError
