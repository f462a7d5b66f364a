"""Guesses that nothing is planned by: whether a row's next token would have been guessed."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["Trials"]

Int32 = npt.NDArray[np.int32]
Bool = npt.NDArray[np.bool_]

NONE = -1


class Trials:
    """By row: a token, and where it is expected."""

    def __init__(self, num_rows: int) -> None:
        self._token_ids = np.zeros(num_rows, np.int32)
        self._positions = np.full(num_rows, NONE, np.int32)

    def __bool__(self) -> bool:
        return bool((self._positions != NONE).any())

    def forget(self, row: int) -> None:
        """The row is another's."""
        self._positions[row] = NONE

    def guess(self, row: int, position: int, token_id: int) -> None:
        """A drafter says what will stand there."""
        self._token_ids[row], self._positions[row] = token_id, position

    def settle(self, rows: Int32, num_tokens: Int32) -> tuple[Int32, Int32, Int32]:
        """Of these rows, which have so many tokens by now, those whose guesses can be judged: with the positions, and
        the guessed tokens. They are judged once."""
        positions = self._positions[rows]
        known = (positions != NONE) & (positions < num_tokens)
        found = rows[known]
        self._positions[found] = NONE
        return found, positions[known], self._token_ids[found]
