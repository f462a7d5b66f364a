"""Where actors take time from. The simulator gives them another one."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Time, as actors see it."""

    def now(self) -> float:
        """Seconds since some moment, never going back."""

    def wall(self) -> float:
        """Seconds since 1970, for telling people and models the date; never for measuring."""


class MonotonicClock:
    """The host's. It agrees with the event loop's own time, which is only exact to a millisecond."""

    @staticmethod
    def now() -> float:
        return time.monotonic()

    @staticmethod
    def wall() -> float:
        return time.time()
