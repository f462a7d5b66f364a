"""The clock of actors. A simulation gives them another one."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Source of time for actors."""

    def now(self) -> float:
        """Return seconds since some moment, never going back."""

    def wall(self) -> float:
        """Return seconds since 1970, for telling people and models the date. Never used for measuring."""


class MonotonicClock:
    """The host's clock. It agrees with the event loop's own time, which is only exact to a millisecond."""

    @staticmethod
    def now() -> float:
        return time.monotonic()

    @staticmethod
    def wall() -> float:
        return time.time()
