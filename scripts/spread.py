"""Spread of times over many requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

PERCENTILES = (50, 90, 99)


@dataclass(frozen=True)
class Spread:
    """Spread of times, in seconds."""

    mean: float
    p50: float
    p90: float
    p99: float

    @classmethod
    def of(cls, values: Sequence[float] | npt.NDArray[np.floating]) -> Spread | None:
        """Return the spread of values in seconds, to the microsecond; None where there are none. values: float [N]."""
        if not len(values):
            return None
        found = [float(np.mean(values)), *map(float, np.percentile(values, PERCENTILES))]
        return cls(*(round(value, 6) for value in found))
