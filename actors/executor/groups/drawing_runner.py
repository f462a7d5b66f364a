"""Base of the model runners of a group's leader, which draws tokens and verifies drafts for all members."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from pageant.actors.executor.groups.moved_slots import MovedSlots
from pageant.actors.executor.runners.config import RunnerConfig
from pageant.actors.executor.runners.runner import TorchRunner
from pageant.protocol.ranks import MoveSlots

__all__ = ["DrawingRunner"]

Int64 = npt.NDArray[np.int64]


class DrawingRunner(TorchRunner):
    """Keeps what the other members are to move of accepted drafts, until the actor tells them."""

    def __init__(self, config: RunnerConfig, **others: Any) -> None:
        self._moved = MovedSlots()
        super().__init__(config, **others)

    def move_slots(self, sources: Int64, destinations: Int64) -> None:
        """See `TorchRunner`."""
        super().move_slots(sources, destinations)
        self._moved.add(sources, destinations)

    def take_moved(self) -> list[MoveSlots]:
        """See `LeadsOthers`."""
        return self._moved.take()
