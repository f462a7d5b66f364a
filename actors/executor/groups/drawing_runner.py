"""Base of the model runners of a group's leader, which draws tokens and verifies drafts for all members."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import numpy.typing as npt

from pageant.actors.executor.runners.config import RunnerConfig
from pageant.actors.executor.runners.runner import TorchRunner
from pageant.protocol.ranks import MoveSlots

__all__ = ["DrawingRunner"]

Int64 = npt.NDArray[np.int64]


class DrawingRunner(TorchRunner):
    """Keeps what the other members are to move of accepted drafts, until the actor tells them."""

    def __init__(self, config: RunnerConfig, **others: Any) -> None:
        self._moved: deque[MoveSlots] = deque()
        """Moves that the others were not told. The computing thread appends, the actor's loop takes."""
        super().__init__(config, **others)

    def move_slots(self, sources: Int64, destinations: Int64) -> None:
        """See `TorchRunner`."""
        super().move_slots(sources, destinations)
        if len(sources):
            self._moved.append(MoveSlots(sources=sources, destinations=destinations))

    def take_moved(self) -> list[MoveSlots]:
        """See `LeadsOthers`."""
        return [self._moved.popleft() for _ in range(len(self._moved))]
