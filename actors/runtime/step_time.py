"""Times of steps by their tokens: the estimator behind an executor's patience, drafts and the tiers of KV memory."""

from __future__ import annotations


class StepTime:
    """Follows the seconds of recent steps as `fixed + each * tokens`: least squares, with decaying weights.

    Args:
        keep: the share of its weight that a step keeps with each later one, below 1.
    """

    def __init__(self, keep: float) -> None:
        self._keep = keep
        # Sums over the steps, by weight.
        self._weight = self._tokens = self._seconds = self._squares = self._products = 0.0

    def add(self, tokens: int, seconds: float) -> None:
        """Add a step of `tokens` tokens that took `seconds`."""
        keep = self._keep
        self._weight = keep * self._weight + 1
        self._tokens = keep * self._tokens + tokens
        self._seconds = keep * self._seconds + seconds
        self._squares = keep * self._squares + tokens * tokens
        self._products = keep * self._products + tokens * seconds

    @property
    def is_known(self) -> bool:
        """Tell whether any step was measured."""
        return self._weight > 0

    @property
    def mean_tokens(self) -> float:
        """Return the mean tokens of a step; only once one was measured."""
        return self._tokens / self._weight

    @property
    def mean_seconds(self) -> float:
        """Return the mean seconds of a step; only once one was measured."""
        return self._seconds / self._weight

    def each(self, variance_min: float) -> float | None:
        """Return the seconds of one more token, which may be below 0 by chance.

        None where the steps are too much alike for a line: the variance of their tokens is below `variance_min`.
        """
        mean_tokens = self.mean_tokens
        variance = self._squares / self._weight - mean_tokens * mean_tokens
        if variance <= 0 or variance < variance_min:
            return None
        return (self._products / self._weight - mean_tokens * self.mean_seconds) / variance
