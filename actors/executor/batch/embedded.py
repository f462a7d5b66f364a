"""Prompts of embeddings that are not computed yet, by the rows of the batch."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from pageant.actors.executor.batch.inputs import EmbeddedTokens, Float32, Int32
from pageant.protocol.stepping import NewSequence

__all__ = ["EmbeddedPrompts"]

_NOTHING: tuple[EmbeddedTokens, ...] = ()


class EmbeddedPrompts:
    """Keeps the embeddings of a row until its prompt is computed. Rows of tokens cost nothing here."""

    def __init__(self) -> None:
        self._rows: dict[int, tuple[int, Float32]] = {}  # the position of the first, and [n, hidden_size]

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
        self._rows.pop(sequence.row, None)
        if (embedded := sequence.embedded) is not None and len(embedded.rows):
            self._rows[sequence.row] = embedded.start, embedded.rows

    def of_step(self, rows: Int32, starts: Int32, counts: Int32) -> tuple[EmbeddedTokens, ...]:
        """Return which of a step's tokens have embeddings of their own.

        Args:
            starts, counts: of each of the rows, the position of its first token, and how many it computes.
        """
        if not self._rows:
            return _NOTHING
        found: list[EmbeddedTokens] = []
        place = 0
        for row, start, count in zip(rows.tolist(), starts.tolist(), counts.tolist(), strict=True):
            if (held := self._rows.get(row)) is not None:
                first, given = held
                end = min(start + count, first + len(given))
                if start < end:
                    tokens = np.arange(place, place + end - start)
                    found.append(EmbeddedTokens(tokens, given[start - first : end - first]))
                if start + count >= first + len(given):
                    del self._rows[row]  # steps are packed in order: the rest of the row is of tokens
            place += count
        return tuple(found)
