"""Which rows have drawn a token that ends them, so that nobody computes on for nothing."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pageant.protocol.stepping import NewSequence


class Endings:
    """Of the rows of a batch. What it says is a hint: it is the scheduler that ends requests.

    Args:
        end_tokens: the model's.
    """

    def __init__(self, end_tokens: tuple[int, ...]) -> None:
        self._end_tokens = end_tokens
        self._tokens: dict[int, frozenset[int]] = {}  # by row
        self._first: dict[int, int] = {}  # by row: the position from which on they end it
        self._ended: set[int] = set()

    def add(self, sequence: NewSequence) -> None:
        """A sequence takes a row."""
        params = sequence.params
        self._tokens[sequence.row] = frozenset(params.end_tokens(self._end_tokens))
        self._first[sequence.row] = sequence.num_prompt_tokens + params.min_tokens - 1

    def forget(self) -> None:
        """All go on, for all that is known."""
        self._ended.clear()

    def all_ended(
        self, rows: npt.NDArray[np.int32], positions: npt.NDArray[np.int64], token_ids: npt.NDArray[np.int64]
    ) -> bool:
        """Takes in the tokens that some rows drew at these positions; whether all of them have ended by now."""
        tokens, first, ended = self._tokens, self._first, self._ended
        for row, position, token in zip(rows.tolist(), positions.tolist(), token_ids.tolist(), strict=True):
            if token in tokens[row] and position >= first[row]:
                ended.add(row)
        return bool(ended) and ended.issuperset(rows.tolist())
