"""The computing thread of a group's leader. Knows no torch."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from pageant.actors.executor.computing import ComputingThread
from pageant.actors.executor.runners.model_runner import ModelRunner
from pageant.actors.executor.work import Launched, Work
from pageant.protocol.ranks import MoveSlots

__all__ = ["LeadingThread", "LeadsOthers"]


class LeadsOthers(ModelRunner, Protocol):
    """A model runner that has others compute each step with it."""

    def ordered(self, work: Work) -> npt.NDArray[np.int64] | None:
        """Note a launch that is ordered from the others. Return its tokens, int64 [T], if they go with the order.

        Called on the actor's loop.
        """

    def take_moved(self) -> list[MoveSlots]:
        """Return what the others are to move of drafts accepted since the last call. Called on the actor's loop."""

    def begin(self, work: Work) -> None:
        """Begin a launch, which the others were ordered to compute."""

    def finish(self) -> None:
        """Have the others leave those steps of the launch that were not computed."""


class LeadingThread(ComputingThread):
    """Computes launches with the others of a group. They hear of a launch that is refused, or that ends early."""

    _runner: LeadsOthers

    def launch(self, work: Work) -> Launched | None:
        """See `ComputingThread`."""
        self._runner.begin(work)
        outcome = super().launch(work)
        self._runner.finish()
        return outcome
