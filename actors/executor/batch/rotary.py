"""Positions by time, height and width that tokens are rotated by, where a prompt has images (M-RoPE)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pageant.actors.executor.batch.held_rows import HeldRows
from pageant.actors.executor.batch.inputs import Int32, Int64
from pageant.protocol.stepping import NewSequence

__all__ = ["RotaryRows"]


class _Prompt(NamedTuple):
    """Positions of one row of the batch."""

    positions: npt.NDArray[np.int32]
    """[3, N], of its prompt."""
    shift: int
    """Added to the position of each later token: images take fewer positions than tokens."""


class RotaryRows(HeldRows[_Prompt]):
    """Keeps the rotary positions of rows whose prompts have images, to their ends. Other rows cost nothing here."""

    def _held_for(self, sequence: NewSequence) -> _Prompt | None:
        if (embedded := sequence.embedded) is None or (rotary := embedded.rotary) is None:
            return None
        return _Prompt(rotary, int(rotary.max()) + 1 - rotary.shape[1])

    def of_step(self, rows: Int32, counts: Int32, positions: Int64) -> Int64 | None:
        """Return the rotary positions of a step's tokens, [3, T]; None where they are their positions.

        Args:
            counts: of each of the rows, how many tokens it computes.
            positions: [T], of the tokens.
        """
        if not self._rows or self._rows.keys().isdisjoint(numbers := rows.tolist()):
            return None
        found = np.tile(positions, (3, 1))
        first = 0
        for row, count in zip(numbers, counts.tolist(), strict=True):
            if (prompt := self._rows.get(row)) is not None:
                part = found[:, first : first + count]
                length = prompt.positions.shape[1]
                inside = part[0] < length
                of_prompt = prompt.positions[:, np.minimum(part[0], length - 1)]
                part[:] = np.where(inside, of_prompt, part + prompt.shift)
            first += count
        return found
