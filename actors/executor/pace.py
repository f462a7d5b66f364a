"""Pace of steps: how long they take, and how long one may take before nobody waits for it any more."""

from __future__ import annotations

from pageant.protocol.errors import PageantError

FACTOR = 20.0  # of what is expected
UNKNOWN_SECONDS = 600.0  # for a step while nothing is expected: the first ones may have to be compiled
DECAY = 0.98  # of a step's weight, with each that follows


class StepHung(PageantError):
    """A step did not return."""


class Pace:
    """Seconds of a step by its tokens, as a + b x tokens: least squares over the recent ones.

    Args:
        patience: seconds that any step may take.
    """

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._weight = self._tokens = self._seconds = self._squares = self._products = 0.0

    def took(self, tokens: int, seconds: float) -> None:
        """A step has been computed."""
        self._weight = self._weight * DECAY + 1
        self._tokens = self._tokens * DECAY + tokens
        self._seconds = self._seconds * DECAY + seconds
        self._squares = self._squares * DECAY + tokens * tokens
        self._products = self._products * DECAY + tokens * seconds

    def expected(self, tokens: int) -> float | None:
        """Seconds of a step of so many tokens. While all were alike, in proportion: rather too long than too short."""
        if not self._weight:
            return None
        mean, seconds = self._tokens / self._weight, self._seconds / self._weight
        variance = self._squares / self._weight - mean * mean
        if variance < 1e-6 * mean * mean:
            return seconds * max(1.0, tokens / mean)
        slope = max(0.0, (self._products / self._weight - mean * seconds) / variance)
        return max(0.0, seconds + slope * (tokens - mean))

    def patience(self, tokens: int) -> float:
        """Seconds after which a step of so many tokens is given up."""
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
