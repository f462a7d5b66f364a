"""Pace of steps: how long they take, and how long one may take before nobody waits for it any more."""

from __future__ import annotations

from pageant.actors.runtime.step_time import StepTime
from pageant.protocol.errors import PageantError

FACTOR = 20.0  # of what is expected
UNKNOWN_SECONDS = 600.0  # for a step while nothing is expected: the first ones may have to be compiled
DECAY = 0.98  # of a step's weight, with each that follows


class StepHung(PageantError):
    """A step did not return."""


class Pace:
    """Decides how long a step may take, from the times of the recent ones.

    Args:
        patience: seconds that any step may take.
    """

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._time = StepTime(DECAY)

    def took(self, tokens: int, seconds: float) -> None:
        """Record a step of `tokens` tokens that took `seconds`."""
        self._time.add(tokens, seconds)

    def expected(self, tokens: int) -> float | None:
        """Return the seconds of a step of so many tokens; None before any was measured.

        While all were alike, they are in proportion to the tokens: rather too long than too short.
        """
        if not self._time.is_known:
            return None
        mean, seconds = self._time.mean_tokens, self._time.mean_seconds
        each = self._time.each(1e-6 * mean * mean)
        if each is None:
            return seconds * max(1.0, tokens / mean)
        return max(0.0, seconds + max(0.0, each) * (tokens - mean))

    def patience(self, tokens: int) -> float:
        """Return the seconds after which a step of so many tokens is given up."""
        expected = self.expected(tokens)
        return UNKNOWN_SECONDS if expected is None else max(self._patience, FACTOR * expected)


class HangWatch:
    """Tells for how long the same work has been first in line, as far as looks at it can say."""

    def __init__(self) -> None:
        self._watched: object | None = None
        """What was first in line at the last look."""
        self._since = 0.0
        """When it was first seen there."""
        self.prepares = False
        """Whether it has been seen to wait for a kernel to be compiled, which takes longer than any step."""

    def look(self, first: object | None, now: float, *, preparing: bool = False) -> float:
        """Return for how many seconds this has been first in line; 0 where nothing is.

        Args:
            preparing: a kernel is compiled now, for whatever is first.
        """
        if first is not self._watched:
            self._watched, self._since, self.prepares = first, now, False
        self.prepares = self.prepares or preparing
        return 0.0 if first is None else now - self._since

    @staticmethod
    def hung(tokens: int, seconds: float) -> StepHung:
        """Return the error about a step of so many tokens."""
        return StepHung(f"a step of {tokens} tokens has not returned for {seconds:.1f} s")
