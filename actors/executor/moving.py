"""In which order blocks are moved, and which steps wait for them. A core: no I/O, no clock.

Moves are made one after another, in a thread beside the one that computes. Those of a plan begin when it comes,
while the step before it is computed: what they write is nobody's in that step. A step is launched when what it
needs is there, and what it will overwrite is saved: its own urgent saves and restores, and all moves of earlier
plans. A plan's other saves are made while its step computes.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pageant.protocol.arrays import int32
from pageant.protocol.tiers import BlockMoves, MoveTimes

Int32 = npt.NDArray[np.int32]

REPORT_STEPS = 64  # steps without a move after which there is a report all the same


class Move(NamedTuple):
    """Blocks that are copied to slots of the host, one after another; then slots to blocks."""

    save_blocks: Int32
    save_slots: Int32
    restore_slots: Int32
    restore_blocks: Int32

    def __len__(self) -> int:
        return len(self.save_blocks) + len(self.restore_blocks)


class Moving:
    """The moves that have been planned, and what those made have taken."""

    def __init__(self) -> None:
        self._queue: deque[tuple[Move, int]] = deque()
        self._added = self._made = 0
        self._num_moved, self._move_seconds = 0, 0.0
        self._steps: list[tuple[int, float]] = []

    def add(self, moves: BlockMoves | None, incarnation: int) -> int:
        """Takes in the moves of a plan of that incarnation's; returns how many moves in all, ever, are to be made
        before its step."""
        if moves is None:
            return self._added
        urgent = moves.num_urgent
        nothing = int32()
        before = Move(
            moves.save_blocks[:urgent], moves.save_slots[:urgent], moves.restore_slots, moves.restore_blocks
        )
        beside = Move(moves.save_blocks[urgent:], moves.save_slots[urgent:], nothing, nothing)
        self._enqueue(before, incarnation)
        needed = self._added
        self._enqueue(beside, incarnation)
        return needed

    def _enqueue(self, move: Move, incarnation: int) -> None:
        if len(move):
            self._queue.append((move, incarnation))
            self._added += 1

    @property
    def first(self) -> tuple[Move, int] | None:
        """What is to be moved next, and by whose word."""
        return self._queue[0] if self._queue else None

    def made(self, seconds: float) -> None:
        """The first move has been made."""
        move, _ = self._queue.popleft()
        self._made += 1
        self._num_moved += len(move)
        self._move_seconds += seconds

    def allows(self, needed: int) -> bool:
        """Whether so many moves have been made."""
        return self._made >= needed

    def stepped(self, num_tokens: int, seconds: float) -> None:
        """A step was computed. Noted where there are moves at all."""
        if self._added:
            self._steps.append((num_tokens, seconds))

    def take_report(self, epoch: int) -> MoveTimes | None:
        """What is to be told of the moves made and the steps computed since last time, if it is time to."""
        if not self._steps or (not self._num_moved and len(self._steps) < REPORT_STEPS):
            return None
        report = MoveTimes(
            epoch=epoch,
            step_tokens=int32([tokens for tokens, _ in self._steps]),
            step_seconds=np.array([seconds for _, seconds in self._steps], np.float32),
            num_moved=self._num_moved,
            move_seconds=self._move_seconds,
        )
        self._steps, self._num_moved, self._move_seconds = [], 0, 0.0
        return report
