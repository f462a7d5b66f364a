"""Step times, as a recording says: by the tokens of a step, its rows, and the tokens that these attend to.

A token more costs little where a step has few, since kernels read the weights anyway, and more where it has many. So
the cost of a token is a line with bends. The fit makes relative errors small: a decode step counts as much as a prefill
that takes a hundred times as long.

What this does not explain (other work on the machine, for one) comes back by lot, the same for every replay. Each step
takes as many times what is expected as some step of about its tokens did in the recording.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator
from copy import copy
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pageant.protocol.stepping import StepPlan

LUCK = 4096  # steps that are drawn at a time
UNKNOWN_SECONDS = 0.01  # of a step, where none was recorded
LEAST_SECONDS = 1e-6
ROUNDS = 30
"""Rounds of the fit, each of which weighs steps by the errors of the one before."""
NEAR = 0.05
"""Relative errors below which the fit is of squares; above, it is of absolute values."""
BENDS = (4, 16, 64, 256)
"""Tokens of a step at which the cost of a further token may change."""
CLASS_MIN = 20
"""The least steps between two bends that are fitted, and drawn from, by themselves."""


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


class Bend(NamedTuple):
    """Change of the cost of a token."""

    tokens: int
    """The tokens of a step beyond which it holds."""
    seconds: float
    """What a token costs more; below 0 it costs less."""


@dataclass
class Fitted:
    """Seconds are `constant` + the rest by `StepSize`. A token costs more or less beyond each of the `bends`."""

    constant: float = UNKNOWN_SECONDS
    token: float = 0.0
    row: float = 0.0
    context_token: float = 0.0
    bends: tuple[Bend, ...] = ()


class StepCosts:
    """Collects steps, then fits."""

    def __init__(self) -> None:
        self._sizes: list[StepSize] = []
        self._seconds: list[float] = []
        # Tokens beyond which the classes of steps begin, and how many times what is expected the steps of each took.
        self._class_starts: list[int] = [0]
        self._ratios: list[npt.NDArray[np.float64]] = [np.ones(1)]
        self.fitted = Fitted()
        # Seconds of a step, in the median, in which the device did not compute: the host's part of `fitted.constant`.
        self.host_seconds = 0.0

    def __len__(self) -> int:
        return len(self._seconds)

    def add(self, size: StepSize, seconds: float) -> None:
        """A step that was recorded."""
        self._sizes.append(size)
        self._seconds.append(seconds)

    @classmethod
    def merged(cls, several: Iterable[StepCosts]) -> StepCosts:
        """Return the costs fitted to the steps of all of them."""
        found, waits = cls(), []
        for one in several:
            found._sizes += one._sizes
            found._seconds += one._seconds
            waits.append(one.host_seconds)
        found.fit()
        found.host_seconds = median(waits) if waits else 0.0
        return found

    def fit(self) -> None:
        """Fit the median of steps of each size, without negative costs: what would have one is left out."""
        if not self._seconds:
            return
        seconds = np.maximum(np.array(self._seconds), LEAST_SECONDS)
        sizes = np.array(self._sizes, np.float64)
        self._class_starts = _class_starts(sizes[:, 0])
        starts = self._class_starts
        # Tokens of each step that lie within each class, whose costs are all at least 0.
        within = np.diff(np.minimum(sizes[:, :1], [*starts, np.inf]), axis=1)
        found = _fit(np.column_stack([np.ones(len(seconds)), within, sizes[:, 1:]]), seconds)
        constant, (slopes, (row, context)) = found[0], (found[1:-2], found[-2:])
        bends = zip(starts[1:], np.diff(slopes).tolist(), strict=True)
        self.fitted = Fitted(
            float(constant), float(slopes[0]), float(row), float(context), tuple(Bend(*one) for one in bends)
        )
        ratios = seconds / np.array([self.expected(size) for size in self._sizes])
        places = np.searchsorted(starts, sizes[:, 0], side="left") - 1
        self._ratios = [np.sort(ratios[places == place]) for place in range(len(starts))]

    def expected(self, size: StepSize) -> float:
        """Seconds of a step of that size."""
        fitted = self.fitted
        found = (
            fitted.constant
            + fitted.token * size.tokens
            + fitted.row * size.rows
            + fitted.context_token * size.context
        )
        for tokens, seconds in fitted.bends:
            found += seconds * max(0, size.tokens - tokens)
        return max(found, LEAST_SECONDS)

    def changed(self, fitted: Fitted) -> StepCosts:
        """Return the same with other expected seconds."""
        other = copy(self)
        other.fitted = fitted
        return other

    def luck(self) -> Iterator[float]:
        """Return the luck of one step after another, for `factor`: numbers of at least 0 and below 1."""
        chance = np.random.default_rng(0)
        while True:
            yield from chance.random(LUCK).tolist()

    def factor(self, size: StepSize, luck: float) -> float:
        """Return how many times what is expected a step takes, as some step of its class did."""
        ratios = self._ratios[max(0, bisect.bisect_left(self._class_starts, size.tokens) - 1)]
        return float(ratios[int(luck * len(ratios))])


def _class_starts(tokens: npt.NDArray[np.float64]) -> list[int]:
    """Return the tokens beyond which classes of steps begin, from 0 on, so that each has steps of several sizes."""
    starts = [0]
    for start in BENDS:
        inside = tokens[(tokens > starts[-1]) & (tokens <= start)]
        above = tokens[tokens > start]
        if min(len(inside), len(above)) >= CLASS_MIN and min(len(set(inside)), len(set(above))) > 1:
            starts.append(start)
    return starts


def _fit(columns: npt.NDArray[np.float64], seconds: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return costs of at least 0 that bring the errors to their least sum, each as a share of what is expected.

    columns: [N, C]. seconds: [N], above 0. Returns [C].
    """
    least = float(np.percentile(seconds, 10))
    expected, errors = np.maximum(seconds, least), np.ones(len(seconds))
    for _ in range(ROUNDS):
        # Squares, weighed so that they are absolute values of relative errors.
        weights = 1 / (expected * np.sqrt(np.maximum(errors, NEAR)))
        found = _fit_squares(columns * weights[:, None], seconds * weights)
        expected = np.maximum(columns @ found, least)
        errors = np.abs(seconds - expected) / expected
    return found


def _fit_squares(
    columns: npt.NDArray[np.float64], wanted: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """Return factors of at least 0, [C], of columns [N, C] whose sum comes near what is wanted, [N]."""
    kept = list(range(columns.shape[1]))
    while True:
        found = np.linalg.lstsq(columns[:, kept], wanted, rcond=None)[0]
        if (found >= 0).all():
            break
        kept.pop(int((found * np.abs(columns[:, kept]).sum(axis=0)).argmin()))
    factors = np.zeros(columns.shape[1])
    factors[kept] = found
    return factors
