"""Tokens that end rows, so that nothing is computed beyond them. A hint: it is the scheduler that ends requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pageant.protocol.stepping import NewSequence

__all__ = ["EndTokens", "EndedRows", "RowEnd"]


class RowEnd(NamedTuple):
    """One row's end tokens, and the position from which on they end it."""

    tokens: frozenset[int]
    first_position: int


class EndTokens:
    """Keeps the end tokens of each row of the batch. Belongs to the actor's loop.

    Args:
        end_tokens: the model's.
    """

    def __init__(self, end_tokens: tuple[int, ...]) -> None:
        self._end_tokens = end_tokens
        self._rows: dict[int, RowEnd] = {}

    def add(self, sequence: NewSequence) -> None:
        """Take the end tokens of a sequence that takes a row."""
        params = sequence.params
        self._rows[sequence.row] = RowEnd(
            frozenset(params.end_tokens(self._end_tokens)),
            sequence.num_prompt_tokens + params.min_tokens - 1,
        )

    def of(self, rows: npt.NDArray[np.int32]) -> tuple[RowEnd, ...]:
        """Return what ends each of these rows now, whoever takes them later. rows: int32 [D]."""
        return tuple([self._rows[row] for row in rows.tolist()])


class EndedRows:
    """Remembers which rows have drawn an end token. Belongs to the computing thread."""

    def __init__(self) -> None:
        self._ended: set[int] = set()

    def clear(self) -> None:
        """Begin anew: no row has ended."""
        self._ended.clear()

    def all_ended(
        self,
        rows: npt.NDArray[np.int32],
        ends: Sequence[RowEnd],
        positions: npt.NDArray[np.int64],
        token_ids: npt.NDArray[np.int64],
    ) -> bool:
        """Take in the tokens that rows with these `ends` drew at these positions.

        rows: int32 [D]. ends: D of them. positions, token_ids: int64 [D].

        Returns:
            Whether all of these rows have ended by now.
        """
        ended = self._ended
        drawn = zip(rows.tolist(), ends, positions.tolist(), token_ids.tolist(), strict=True)
        for row, end, position, token in drawn:
            if token in end.tokens and position >= end.first_position:
                ended.add(row)
        return bool(ended) and ended.issuperset(rows.tolist())
