"""A step between its forward pass and its draw, where it waits for its masks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from pageant.actors.executor.guided.masks import GuidedStep
from pageant.protocol.pooling import PooledRows

__all__ = ["PendingSample", "PooledResults"]

Int64 = npt.NDArray[np.int64]


class PooledResults(Protocol):
    """The results of sequences that are pooled, perhaps still on a device."""

    def columns(self) -> PooledRows | None:
        """Return them. Waits for the device."""


@dataclass(frozen=True, kw_only=True)
class PendingSample:
    """Sample of D rows, some of them guided, whose logits are ready and whose masks are awaited."""

    places: Int64  # [D], among the drawing rows of their step
    guided: GuidedStep
    waited: float = 0.0  # seconds that masks have been waited for
    pooling: PooledResults | None = None  # of sequences of the step that are pooled

    def part(self, places: Int64) -> PendingSample:
        """Some of the D rows, in memory of their own."""
        raise NotImplementedError
