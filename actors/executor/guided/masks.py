"""The masks that have come, and what a step takes of them."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pageant.actors.runtime.clock import Clock

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]


class HeldMasks(NamedTuple):
    """Masks, and the positions of the tokens that they are for. Others take their place when more room is needed."""

    bits: Int32  # [slots, W]; W comes with the first masks
    positions: Int64  # [slots]


class MaskTable:
    """The last masks of each row, by how many drafts come before, and the positions of the tokens that they are for.

    Slot `row + ahead * rows` is for what comes after `ahead` drafts. What is left there of a step that is over is never
    taken for a later one's: that has other positions. Written on the actor's loop, and read by the thread that
    computes.
    """

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self.held = HeldMasks(np.zeros((rows, 0), np.int32), np.zeros(rows, np.int64))
        self.failed: Mapping[int, str] = {}
        """By row, why there will be no mask. Replaced as a whole: the computing thread goes through it."""
        self.came = threading.Event()  # something did, since whoever waits for it cleared this

    @property
    def may_be_played(self) -> bool:
        """Tell whether recordings can draw by it: there are masks, and none has failed."""
        return not self.failed and self.held.bits.size > 0

    def slots(self, rows: Int64, ahead: Int64) -> Int64:
        """Return where the masks of rows are, after so many drafts each."""
        if not ahead.any():
            return rows
        bits, positions = self.held
        missing = (1 + int(ahead.max())) * self._rows - len(positions)
        if missing > 0:
            self.held = HeldMasks(
                np.concatenate([bits, np.zeros((missing, bits.shape[1]), np.int32)]),
                np.concatenate([positions, np.zeros(missing, np.int64)]),
            )
        found: Int64 = rows + ahead * self._rows
        return found

    def take(self, slots: Int64, positions: Int64, bits: Int32) -> None:
        """Masks have come."""
        if not len(slots):
            return  # they may be of no width
        held = self.held
        if held.bits.shape[1] != bits.shape[1]:
            room = np.zeros((len(held.positions), bits.shape[1]), np.int32)
            held = self.held = HeldMasks(room, held.positions.copy())
        held.bits[slots] = bits
        held.positions[slots] = positions  # after the bits, which it vouches for
        self.came.set()

    def fail(self, row: int, reason: str) -> None:
        """Note that a row will have no masks, and why."""
        self.failed = {**self.failed, row: reason}
        self.came.set()

    def forget(self, row: int) -> None:
        """A row is another's from now on."""
        if row in self.failed:
            self.failed = {other: reason for other, reason in self.failed.items() if other != row}
        self.held.positions[row :: self._rows] = 0


@dataclass(frozen=True)
class GuidedStep:
    """Guided rows of a step: G of its D drawing rows, by place, row, the position that they draw, and the
    drafts that come before."""

    places: Int64
    rows: Int64
    positions: Int64
    ahead: Int64
    slots: Int64  # of their masks
    table: MaskTable
    void: tuple[int, ...] = ()  # places of drawing rows whose tokens nobody will read

    @classmethod
    def of(cls, places: Int64, rows: Int64, positions: Int64, ahead: Int64, table: MaskTable) -> GuidedStep:
        """Make the guided rows, with the slots that the table has for them."""
        return cls(places, rows, positions, ahead, table.slots(rows, ahead), table)

    def _part(self, some: npt.NDArray[np.bool_]) -> GuidedStep:
        places, rows, positions = self.places[some], self.rows[some], self.positions[some]
        return GuidedStep(places, rows, positions, self.ahead[some], self.slots[some], self.table)

    @property
    def late(self) -> Int64:
        """The places whose masks have not come."""
        found: Int64 = self.places[self._is_late]
        return found

    def come_until(self, time: float, clock: Clock) -> bool:
        """Wait until no mask is late any more, or until `time`, in seconds of the clock. Return whether all are there.

        Blocks the calling thread, so the actor's loop must not call it.
        """
        while (left := time - clock.now()) > 0:
            self.table.came.clear()
            if not self._is_late.any():
                return True
            self.table.came.wait(left)
        return False

    @property
    def deferred(self) -> Int64:
        """Return the late places that come after no drafts. The others are done without: a row ends before them."""
        found: Int64 = self.places[self._is_late & (self.ahead == 0)]
        return found

    @property
    def _is_late(self) -> npt.NDArray[np.bool_]:
        missing: npt.NDArray[np.bool_] = self.table.held.positions[self.slots] != self.positions
        failed = self.table.failed
        if failed and missing.any():
            missing &= ~np.isin(self.rows, list(failed))
        return missing

    def failures(self) -> dict[int, str]:
        """Return why some places will have no mask."""
        failed = self.table.failed
        if not failed:
            return {}
        pairs = zip(self.places.tolist(), self.rows.tolist(), strict=True)
        return {place: failed[row] for place, row in pairs if row in failed}

    def present(self) -> tuple[Int64, Int32]:
        """The places [P] whose masks have come, and the masks [P, W], which are not copied where they lie side by side:
        then they are good while their rows are drawn, and no longer."""
        bits, positions = self.table.held
        here = positions[self.slots] == self.positions
        places, slots = self.places, self.slots
        if not here.all():
            places, slots = places[here], slots[here]
        count = len(slots)
        if not count:
            return places, bits[:0]
        first = int(slots.min())
        if int(slots.max()) - first != count - 1:
            return places, bits[slots]
        ordered = np.empty_like(places)
        ordered[slots - first] = places
        return ordered, bits[first : first + count]

    def without(self, places: tuple[int, ...]) -> GuidedStep | None:
        """But for some of the drawing rows."""
        kept = ~np.isin(self.places, places)
        return replace(self._part(kept), void=places) if kept.any() else None

    def part(self, places: Int64) -> GuidedStep:
        """Return the guided rows of some of the drawing rows, which get new places: 0, 1, ..."""
        part = self._part(np.isin(self.places, places))
        return replace(part, places=np.searchsorted(places, part.places))
