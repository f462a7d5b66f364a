"""Shadow drafts: drafts that are compared with the next sampled token and never computed."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["ShadowDrafts"]

Int32 = npt.NDArray[np.int32]
Bool = npt.NDArray[np.bool_]

# The position of a row without a shadow draft.
NO_POSITION = -1


class ShadowDrafts:
    """Shadow drafts: at most one per row, a token id and the position that it is expected at."""

    def __init__(self, num_rows: int) -> None:
        self._token_ids = np.zeros(num_rows, np.int32)
        self._positions = np.full(num_rows, NO_POSITION, np.int32)

    def __bool__(self) -> bool:
        return bool((self._positions != NO_POSITION).any())

    def forget(self, row: int) -> None:
        """Forget the shadow draft of a row."""
        self._positions[row] = NO_POSITION

    def record(self, row: int, position: int, token_id: int) -> None:
        """Record a shadow draft."""
        self._token_ids[row], self._positions[row] = token_id, position

    def take_known(self, rows: Int32, num_tokens: Int32) -> tuple[Int32, Int32, Int32]:
        """Return the shadow drafts whose tokens are known now, and forget them.

        rows, num_tokens: int32 [N]. Returns rows, positions and drafts: int32 [M] each.
        """
        positions = self._positions[rows]
        known = (positions != NO_POSITION) & (positions < num_tokens)
        found = rows[known]
        self._positions[found] = NO_POSITION
        return found, positions[known], self._token_ids[found]
