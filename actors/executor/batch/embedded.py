"""Embeddings of prompts that are not computed yet, by the rows of the batch."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pageant.actors.executor.batch.held_rows import HeldRows
from pageant.actors.executor.batch.inputs import EmbeddedTokens, Float32, Int32
from pageant.protocol.stepping import NewSequence

__all__ = ["EmbeddedPrompts"]

_NOTHING: tuple[EmbeddedTokens, ...] = ()


class _Held(NamedTuple):
    """Embeddings of one row of the batch."""

    places: Int32
    """[n], ascending: the positions of their tokens."""
    rows: Float32
    """[n, width]."""
    are_images: bool
    """They are not all of the prompt."""


class EmbeddedPrompts(HeldRows[_Held]):
    """Keeps the embeddings of a row until its prompt is computed. Rows of tokens cost nothing here."""

    def _held_for(self, sequence: NewSequence) -> _Held | None:
        embedded = sequence.embedded
        if embedded is None or not len(embedded.rows) or embedded.attended:
            return None
        places = embedded.places
        if places is None:
            places = np.arange(embedded.start, embedded.start + len(embedded.rows), dtype=np.int32)
        return _Held(places, embedded.rows, embedded.places is not None)

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
                first, end = np.searchsorted(held.places, (start, start + count)).tolist()
                if first < end:
                    tokens = held.places[first:end].astype(np.int64) + (place - start)
                    found.append(EmbeddedTokens(tokens, held.rows[first:end], held.are_images))
                if end == len(held.places):
                    del self._rows[row]  # steps are packed in order: the rest of the row is of tokens
            place += count
        return tuple(found)
