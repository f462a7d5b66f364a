"""Draws that wait for their masks: logits are kept until a mask comes, or it is too late."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np

from pageant.actors.executor.undrawn import Undrawn

if TYPE_CHECKING:
    from pageant.actors.executor.guiding import Guiding

S = TypeVar("S")

MASK_SECONDS = 1.0  # after which a row fails whose mask does not come
FIRST_MASK_SECONDS = 15.0  # likewise, where the grammar may have to be compiled first, after a restart
PATIENCE_SECONDS = 0.05  # that a step waits for masks at most
DEFERRAL_STEPS = 3  # that a row loses by being deferred, about: this one, a void one, and one to begin again


def patience_for(late: int, drawing: int, step_seconds: float) -> float:
    """How long a step waits for the masks of `late` of its rows, after which it draws the others.

    Until then waiting has cost the others as much as being deferred costs the late ones, so all of it is at most
    twice what it would be for one who knew when masks come.
    """
    ready = drawing - late
    worth = DEFERRAL_STEPS * step_seconds * late / ready if ready else PATIENCE_SECONDS
    return min(worth, PATIENCE_SECONDS)


@dataclass(frozen=True)
class Kept(Generic[S]):
    """One step's rows, and their guides."""

    step: S
    undrawn: Undrawn
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
        return Kept(self.step, self.undrawn.part(places), guides, self.since)


class KeptDraws(Generic[S]):
    """All of them, of steps of the kind S."""

    def __init__(self, guiding: Guiding) -> None:
        self._guiding = guiding
        self._kept: list[Kept[S]] = []

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, step: S, undrawn: Undrawn, now: float) -> None:
        """A step drew without these rows."""
        guides = [self._guiding.guide_of(row) for row in undrawn.guided.rows.tolist()]
        self._kept.append(Kept(step, undrawn, guides, now))

    def take_due(self) -> list[Kept[S]]:
        """Those that can be drawn by now. Those whose rows are gone are forgotten."""
        due: list[Kept[S]] = []
        waiting: list[Kept[S]] = []
        for kept in self._kept:
            alive, _ = kept.split([self._guiding.is_open(guide) for guide in kept.guides])
            for one in alive:
                late = one.undrawn.guided.late.tolist()
                there, missing = one.split([place not in late for place in range(len(one.guides))])
                due += there
                waiting += missing
        self._kept = waiting
        return due

    def give_up(self, now: float, up_since: float) -> None:
        """Fails the rows whose masks are too late, by when the grammar came up. `take_due` has them then."""
        for kept in self._kept:
            waited = now - max(kept.since, up_since)
            for guide in filter(self._guiding.is_open, kept.guides):
                limit = MASK_SECONDS if self._guiding.has_masks(guide) else FIRST_MASK_SECONDS
                if waited > limit:
                    self._guiding.fail(guide, f"its grammar did not say within {limit:g} s what may follow")
