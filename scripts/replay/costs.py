"""Step times, as a recording says: by the tokens of a step, its rows, and the tokens that these attend to.

What this does not explain (other work on the machine, for one) comes back by lot: each step takes as many times what is
expected as some step of the recording did, the same for every replay.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from pageant.protocol.stepping import StepPlan

PERCENT_OUTLIERS = 99.0  # a step above it was held up by something else, and would bend the fit
LUCK = 4096  # steps that are drawn at a time
UNKNOWN_SECONDS = 0.01  # of a step, where none was recorded


class StepSize(NamedTuple):
    """Size of a step."""

    tokens: int
    rows: int
    context: int

    @classmethod
    def of(cls, plan: StepPlan) -> StepSize:
        """Return the size of a planned step, drafts included."""
        return cls(
            tokens=int(plan.num_tokens.sum() + plan.draft_counts.sum()),
            rows=len(plan.rows),
            context=int((plan.starts + plan.num_tokens).sum()),
        )


@dataclass
class Fitted:
    """Seconds are `constant` + the rest by `StepSize`."""

    constant: float = UNKNOWN_SECONDS
    token: float = 0.0
    row: float = 0.0
    context_token: float = 0.0


class StepCosts:
    """Collects steps, then fits."""

    def __init__(self) -> None:
        self._sizes: list[StepSize] = []
        self._seconds: list[float] = []
        self._ratios = np.ones(1)
        self.fitted = Fitted()
        # Seconds of a step, in the median, in which the device did not compute: the host's part of `fitted.constant`.
        self.host_seconds = 0.0

    def __len__(self) -> int:
        return len(self._seconds)

    def add(self, size: StepSize, seconds: float) -> None:
        """A step that was recorded."""
        self._sizes.append(size)
        self._seconds.append(seconds)

    def fit(self) -> None:
        """Least squares, without negative costs: what would have one is left out."""
        if not self._seconds:
            return
        seconds = np.array(self._seconds)
        kept = seconds <= np.percentile(seconds, PERCENT_OUTLIERS)
        sizes = np.column_stack([np.ones(len(seconds)), np.array(self._sizes, float)])[kept]
        columns = list(range(sizes.shape[1]))
        while True:
            found = np.linalg.lstsq(sizes[:, columns], seconds[kept], rcond=None)[0]
            if (found >= 0).all():
                break
            columns.pop(int(found.argmin()))
        costs = np.zeros(sizes.shape[1])
        costs[columns] = found
        self.fitted = Fitted(*costs.tolist())
        expected = np.array([self.expected(size) for size in self._sizes])
        if expected.min() > 0:
            self._ratios = seconds / expected

    def expected(self, size: StepSize) -> float:
        """Seconds of a step of that size."""
        fitted = self.fitted
        return (
            fitted.constant
            + fitted.token * size.tokens
            + fitted.row * size.rows
            + fitted.context_token * size.context
        )

    def changed(self, fitted: Fitted) -> StepCosts:
        """Return the same with other expected seconds."""
        other = copy(self)
        other.fitted = fitted
        return other

    def luck(self) -> Iterator[float]:
        """Return how many times what is expected each step takes, one after another."""
        chance = np.random.default_rng(0)
        while True:
            yield from chance.choice(self._ratios, LUCK).tolist()
