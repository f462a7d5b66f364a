"""Where actors take time from. The simulator gives them another one."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Seconds since some moment, never going back."""

    def now(self) -> float: ...


class MonotonicClock:
    """The host's. It agrees with the event loop's own time, which is only exact to a millisecond."""

    @staticmethod
    def now() -> float:
        return time.monotonic()
