"""Outputs of encoders of sounds, for the rows of the batch whose tokens attend to them."""

from __future__ import annotations

from typing import NamedTuple

from pageant.actors.executor.batch.held_rows import HeldRows
from pageant.actors.executor.batch.inputs import EncodedStep, Float32, Int32
from pageant.protocol.stepping import NewSequence

__all__ = ["EncodedPrompts"]


class _Held(NamedTuple):
    """The encoder of one row of the batch."""

    made: Float32 | None
    """float32 [n, width]; None once a step has taken it."""


class EncodedPrompts(HeldRows[_Held]):
    """Keeps what came with a row until its first step, and that it came until its end."""

    def _held_for(self, sequence: NewSequence) -> _Held | None:
        embedded = sequence.embedded
        return None if embedded is None or not embedded.attended else _Held(embedded.rows)

    def of_step(self, rows: Int32) -> EncodedStep | None:
        """Return the encoders of a step of these rows; None where none of them has one."""
        if not self._rows or self._rows.keys().isdisjoint(numbers := rows.tolist()):
            return None
        new = []
        for row in numbers:
            held = self._rows.get(row)
            if held is not None and held.made is not None:
                new.append((row, held.made))
                self._rows[row] = _Held(None)  # the device has it from now on
        return EncodedStep(rows, tuple(new))
