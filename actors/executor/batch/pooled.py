"""Sequences that are pooled: what a step computes of each, and where its result goes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pageant.protocol.pooling import PoolingParams
from pageant.protocol.stepping import NewSequence

__all__ = ["PooledPart", "PooledSequences", "PooledStep"]

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class PooledPart:
    """The tokens of one sequence that a step computes."""

    row: int
    """The row of the batch."""
    tokens: slice
    """Of the step's T."""
    begins: bool
    """Whether they are the first that are computed of the sequence."""
    place: int | None
    """Of the step's D drawing entries, that of the sequence, where its last token is computed."""
    params: PoolingParams


@dataclass(frozen=True, slots=True)
class PooledStep:
    """The pooled sequences of a step."""

    parts: tuple[PooledPart, ...]
    token_types: Int64 | None
    """int64 [T]: 1 for tokens of a pair's second text; None where no sequence is such a pair."""

    @property
    def places(self) -> list[int]:
        """Return the drawing entries that are results of pooling and have no token."""
        return [part.place for part in self.parts if part.place is not None]


class PooledSequences:
    """The rows of the batch whose sequences are pooled. Others cost nothing here."""

    def __init__(self) -> None:
        self._rows: dict[int, PoolingParams] = {}
        self._begun: set[int] = set()

    def clear(self) -> None:
        """Forget every row."""
        self._rows.clear()
        self._begun.clear()

    def free(self, rows: Iterable[int]) -> None:
        """Forget some rows."""
        if self._rows:
            for row in rows:
                self._rows.pop(row, None)
                self._begun.discard(row)

    def add(self, sequence: NewSequence) -> None:
        """Take a new sequence, or one that is computed again, in place of what was in its row."""
        self.free((sequence.row,))
        if sequence.pooling is not None:
            self._rows[sequence.row] = sequence.pooling

    def of_step(
        self, rows: Int32, starts: Int32, counts: Int32, draws: npt.NDArray[np.bool_], drawn: Int32
    ) -> PooledStep | None:
        """Return what a step computes of pooled sequences; None where that is nothing.

        Args:
            rows, starts, counts, draws: of the step's sequences, [S] each; see `StepPlan`.
            drawn: int32 [S], how many drawing entries each has.
        """
        if not self._rows:
            return None
        parts = []
        types: Int64 | None = None
        first, place = 0, 0
        columns = zip(
            rows.tolist(), starts.tolist(), counts.tolist(), draws.tolist(), drawn.tolist(), strict=True
        )
        for row, start, count, draws_now, entries in columns:
            params = self._rows.get(row)
            if params is not None:
                tokens = slice(first, first + count)
                begins = row not in self._begun
                self._begun.add(row)
                parts.append(PooledPart(row, tokens, begins, place if draws_now else None, params))
                if params.second_segment is not None and start + count > params.second_segment:
                    types = np.zeros(int(counts.sum()), np.int64) if types is None else types
                    types[first + max(0, params.second_segment - start) : first + count] = 1
            first, place = first + count, place + entries
        return PooledStep(tuple(parts), types) if parts else None
