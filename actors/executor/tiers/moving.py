"""Moves of blocks: in which order they are made, and which steps wait for them. A core: no I/O, no clock.

Moves are made one after another, in a thread beside the one that computes. Those of a plan begin when it comes,
while the step before it is computed: what they write is nobody's in that step. A step is launched when what it
needs is there, and what it will overwrite is saved: its own urgent saves and restores, and all moves of earlier
plans. A plan's other moves are made while its step computes.
"""

from __future__ import annotations

import enum
from collections import deque
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pageant.protocol.arrays import int32
from pageant.protocol.tiers import DISK, BlockMoves, Moved, MoveTimes

Int32 = npt.NDArray[np.int32]

REPORT_STEPS = 64  # steps without a move after which there is a report all the same


class Way(enum.Enum):
    """Direction of a move: from where to where."""

    SAVE = "save"  # from blocks to slots of the host
    RESTORE = "restore"  # from slots of the host to blocks
    READ = "read"  # from slots of the disk to blocks
    WRITE = "write"  # from slots of the host to slots of the disk


class Move(NamedTuple):
    """Blocks that are copied one after another: `sources[i]` to `destinations[i]`."""

    way: Way
    sources: Int32
    destinations: Int32


class Moving:
    """The moves that have been planned, and what those made have taken."""

    def __init__(self) -> None:
        self._queue: deque[tuple[Move, int, int]] = (
            deque()
        )  # with the incarnation, and the number of its step
        self._added = self._made = 0
        self._num_steps = self._num_ended = 0
        self._num_moved = dict.fromkeys(Way, 0)
        self._seconds = dict.fromkeys(Way, 0.0)
        self._steps: list[tuple[int, float]] = []

    def add(self, moves: BlockMoves | None, incarnation: int) -> int:
        """Takes in the moves of a plan of that incarnation's; returns how many moves in all, ever, are to be made
        before its step."""
        self._num_steps += 1
        if moves is None:
            return self._added
        urgent, needed = moves.num_urgent, moves.num_needed
        self._enqueue(Way.SAVE, moves.save_blocks[:urgent], moves.save_slots[:urgent], incarnation)
        self._restore(moves.restore_slots[:needed], moves.restore_blocks[:needed], incarnation)
        before = self._added
        self._enqueue(Way.WRITE, moves.spill_slots, moves.spill_to, incarnation)
        self._enqueue(Way.SAVE, moves.save_blocks[urgent:], moves.save_slots[urgent:], incarnation)
        self._restore(moves.restore_slots[needed:], moves.restore_blocks[needed:], incarnation)
        return before

    def _restore(self, slots: Int32, blocks: Int32, incarnation: int) -> None:
        on_disk = slots >= DISK
        self._enqueue(Way.RESTORE, slots[~on_disk], blocks[~on_disk], incarnation)
        self._enqueue(Way.READ, slots[on_disk], blocks[on_disk], incarnation)

    def _enqueue(self, way: Way, sources: Int32, destinations: Int32, incarnation: int) -> None:
        if len(sources):
            self._queue.append((Move(way, sources, destinations), incarnation, self._num_steps))
            self._added += 1

    @property
    def first(self) -> tuple[Move, int] | None:
        """Return the move to make now, and the incarnation that asked for it; None if none may be made yet.

        The moves of a plan wait while the step two plans before is computed: if nobody waits for that step any more,
        it may still use what this plan says is free.
        """
        if not self._queue or self._queue[0][2] > self._num_ended + 2:
            return None
        return self._queue[0][:2]

    def ended(self) -> None:
        """Note that the next step has been computed, or will not be."""
        self._num_ended += 1

    def made(self, seconds: float) -> None:
        """Note that the first move was made in so many seconds."""
        move, _, _ = self._queue.popleft()
        self._made += 1
        self._num_moved[move.way] += len(move.sources)
        self._seconds[move.way] += seconds

    def allows(self, needed: int) -> bool:
        """Tell whether so many moves have been made."""
        return self._made >= needed

    def stepped(self, num_tokens: int, seconds: float, *, always: bool = False) -> None:
        """Note that a step of so many tokens took so many seconds, where there are moves at all, or `always`."""
        if self._added or always:
            self._steps.append((num_tokens, seconds))

    def take_report(self, epoch: int) -> MoveTimes | None:
        """Take what is to be told of the moves made and the steps computed since last time, if it is time to."""
        if not self._steps or (not any(self._num_moved.values()) and len(self._steps) < REPORT_STEPS):
            return None
        report = MoveTimes(
            epoch=epoch,
            step_tokens=int32([tokens for tokens, _ in self._steps]),
            step_seconds=np.array([seconds for _, seconds in self._steps], np.float32),
            host=self._take_moved(Way.SAVE, Way.RESTORE),
            written=self._take_moved(Way.WRITE),
            read=self._take_moved(Way.READ),
        )
        self._steps = []
        return report

    def _take_moved(self, *ways: Way) -> Moved:
        moved = Moved(
            blocks=sum(self._num_moved[way] for way in ways), seconds=sum(self._seconds[way] for way in ways)
        )
        self._num_moved.update(dict.fromkeys(ways, 0))
        self._seconds.update(dict.fromkeys(ways, 0.0))
        return moved
