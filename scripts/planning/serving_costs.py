"""Times of a request between its client and the scheduler: HTTP, queues between actors, and the client itself."""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, NamedTuple

import numpy as np

__all__ = ["NO_SERVING", "Seen", "ServingCosts"]

TOGETHER_MIN = 8
"""The least requests at once that show how long each of them occupies a frontend."""


class Seen(NamedTuple):
    """Request as its client and the scheduler's recording saw it. Times are seconds of one clock."""

    together: int
    """Requests that were due at the same moment."""
    due: float
    submitted_at: float
    """When it reached the scheduler."""
    first_step_at: float
    """When the step of its first token was over."""
    first_at: float
    """When its client had the first token."""


@dataclass(frozen=True)
class ServingCosts:
    """Seconds that a planned request takes outside of steps.

    Attributes:
        request: from when requests are due until they reach the scheduler, each of one that came alone; sorted.
        handling: between two requests that are due at once, until the second reaches the scheduler after the first.
        output: from the end of a step until clients have its tokens, each of one request; sorted.
    """

    request: tuple[float, ...] = (0.0,)
    handling: float = 0.0
    output: tuple[float, ...] = (0.0,)

    @classmethod
    def of(cls, seen: Sequence[Seen]) -> ServingCosts:
        """Return the costs of a run. Requests that came alone and rounds of several must be among `seen`."""
        alone = [one.submitted_at - one.due for one in seen if one.together == 1]
        usual = median(alone)
        rounds: dict[float, list[Seen]] = {}
        for one in seen:
            if one.together >= TOGETHER_MIN:
                rounds.setdefault(one.due, []).append(one)
        spans = [
            (max(one.submitted_at for one in some) - due - usual) / (len(some) - 1)
            for due, some in rounds.items()
            if len(some) > 1
        ]
        return cls(
            _sorted(alone),
            max(0.0, median(spans)) if spans else 0.0,
            _sorted([one.first_at - one.first_step_at for one in seen if one.together == 1]),
        )

    @classmethod
    def merged(cls, several: Sequence[ServingCosts]) -> ServingCosts:
        """Return the costs of several runs, at least one."""
        return cls(
            _sorted([seconds for one in several for seconds in one.request]),
            median(one.handling for one in several),
            _sorted([seconds for one in several for seconds in one.output]),
        )

    def draw(self, seed: int = 0) -> Iterator[tuple[float, float]]:
        """Yield what the requests of a load take before their steps, and after them, by lot."""
        chance = np.random.default_rng(seed)
        while True:
            for before, after in chance.random((1024, 2)).tolist():
                yield _at(self.request, before), _at(self.output, after)

    def as_data(self) -> dict[str, Any]:
        """Return medians in seconds, as JSON has them."""
        return {"request": median(self.request), "handling": self.handling, "output": median(self.output)}


NO_SERVING = ServingCosts()
"""Costs where nobody measured any: requests reach the scheduler when they are due."""


def step_before(ends: Sequence[float], at: float) -> float | None:
    """Return the end of the last step by `at`, in seconds; None where there is none. ends: seconds, sorted."""
    place = bisect.bisect_right(ends, at)
    return ends[place - 1] if place else None


def _sorted(seconds: Sequence[float]) -> tuple[float, ...]:
    return tuple(sorted(max(0.0, one) for one in seconds))


def _at(values: Sequence[float], luck: float) -> float:
    return values[int(luck * len(values))]
