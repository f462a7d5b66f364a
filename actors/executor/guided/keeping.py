"""Draws that wait for their masks: logits are kept until a mask comes, or it is too late."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from pageant.actors.executor.guided.pending_sample import PendingSample

if TYPE_CHECKING:
    from pageant.actors.executor.guided.guiding import Guiding

S = TypeVar("S")

ASK_AGAIN_SECONDS = 1.0  # after which the grammar is told once more of a waiting row; then after twice that
PATIENCE_SECONDS = 0.05  # that a step waits for masks at most
SOON_SECONDS = 0.005  # that the thread that computes waits for them itself, before the loop does
DEFERRAL_STEPS = 3  # that a row loses by being deferred, about: this one, a void one, and one to begin again


def patience_by_late(drawing: int, step_seconds: float) -> npt.NDArray[np.float64]:
    """[drawing + 1]: for how many seconds a step waits while the masks of 0, 1, ... of its rows are late, after which
    it draws the others.

    Until then waiting has cost the others as much as being deferred costs the late ones, so all of it is at most
    twice what it would be for one who knew when masks come.
    """
    found: npt.NDArray[np.float64] = np.minimum(_steps_lost(drawing) * step_seconds, PATIENCE_SECONDS)
    found[-1] = PATIENCE_SECONDS  # nobody is kept
    return found


def mask_deadline(pending: PendingSample, began: float, reached_draw: float) -> float:
    """Return until when it is worth it to wait for the masks of a step that began, and came to its draw, then."""
    patience = patience_by_late(len(pending.places), reached_draw - began)
    return reached_draw + float(patience[len(pending.guided.late)])


@functools.lru_cache(maxsize=1024)
def _steps_lost(drawing: int) -> npt.NDArray[np.float64]:
    """[drawing + 1]: how many steps the late rows lose, for each row that is kept from being drawn."""
    late = np.arange(drawing + 1)
    lost: npt.NDArray[np.float64] = DEFERRAL_STEPS * late / np.maximum(drawing - late, 1)
    return lost


@dataclass(frozen=True)
class Kept(Generic[S]):
    """One step's rows, and their guides."""

    step: S
    pending: PendingSample
    guides: list[int]
    since: float

    def split(self, chosen: list[bool]) -> tuple[list[Kept[S]], list[Kept[S]]]:
        """The rows that are chosen, and the others; each none or one."""
        if all(chosen):
            return [self], []
        if not any(chosen):
            return [], [self]
        return [self._part(np.flatnonzero(chosen))], [self._part(np.flatnonzero(np.logical_not(chosen)))]

    def _part(self, places: np.ndarray) -> Kept[S]:
        guides = [self.guides[place] for place in places.tolist()]
        return Kept(self.step, self.pending.part(places), guides, self.since)


class KeptDraws(Generic[S]):
    """Draws that are kept, of steps of the kind S.

    Args:
        patience: seconds after which a row fails whose mask has not come.
    """

    def __init__(self, guiding: Guiding, patience: float) -> None:
        self._guiding = guiding
        self._patience = patience
        self._kept: list[Kept[S]] = []
        self._asked: dict[int, int] = {}  # by guide, how often the grammar was told of it once more

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, step: S, pending: PendingSample, now: float) -> None:
        """A step drew without these rows."""
        guides = [self._guiding.guide_of(row) for row in pending.guided.rows.tolist()]
        self._asked = {guide: count for guide, count in self._asked.items() if guide not in guides}
        self._kept.append(Kept(step, pending, guides, now))

    def take_due(self) -> list[Kept[S]]:
        """Take the draws that can be made by now. Those whose rows are gone are forgotten."""
        due: list[Kept[S]] = []
        waiting: list[Kept[S]] = []
        for kept in self._kept:
            alive, _ = kept.split([self._guiding.is_open(guide) for guide in kept.guides])
            for one in alive:
                late = one.pending.guided.late.tolist()
                there, missing = one.split([place not in late for place in range(len(one.guides))])
                due += there
                waiting += missing
        self._kept = waiting
        return due

    def overdue(self, now: float, up_since: float) -> list[int]:
        """The guides that the grammar, which came up then, is to be told of once more: what was said may be lost, or on
        a way that is cut. Fails the rows whose masks are too late; `take_due` has them then."""
        again: list[int] = []
        asked: dict[int, int] = {}
        for kept in self._kept:
            waited = now - max(kept.since, up_since)
            for guide in filter(self._guiding.is_open, kept.guides):
                asked[guide] = self._asked.get(guide, 0)
                if waited > self._patience:
                    limit = f"{self._patience:g} s"
                    self._guiding.fail(guide, f"its grammar did not say within {limit} what may follow")
                elif waited > ASK_AGAIN_SECONDS * 2 ** asked[guide]:
                    asked[guide] += 1
                    again.append(guide)
        self._asked = asked
        return again
