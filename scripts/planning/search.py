"""Search for the fewest replicas that hold a service level."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from pageant.protocol.checks import expected
from pageant.protocol.errors import BadRequest
from pageant.scripts.planning.outcome import Outcome, RequestTimes
from pageant.scripts.spread import Spread

MEASURES: dict[str, Callable[[Outcome], Spread | None]] = {
    "ttft": lambda outcome: outcome.first_token,
    "itl": lambda outcome: outcome.inter_token,
    "tpot": lambda outcome: outcome.per_token,
    "e2e": lambda outcome: outcome.whole,
}
OF_REQUESTS: dict[str, Callable[[RequestTimes], float | None]] = {
    "ttft": lambda one: one.first_token,
    "itl": lambda one: one.inter_token,
    "tpot": lambda one: one.per_token,
    "e2e": lambda one: one.whole,
}
"""The same measures of one request."""
UNITS = {"ms": 1e-3, "s": 1.0}
RATE_STEPS = (1.1, 1.25, 1.5, 2.0, 3.0, 4.0)
"""The load that is tried on the found number of replicas, over that which was asked for."""
NEARLY_ALL = 0.95
"""Share of the time, or of the memory, from which on it counts as what binds."""


@dataclass(frozen=True)
class ServiceLevel:
    """Bounds of 99th percentiles, in seconds by the name of what they bound (`MEASURES`)."""

    bounds: dict[str, float]

    @classmethod
    def parse(cls, text: str) -> ServiceLevel:
        """Parse such as `ttft=500ms,itl=50ms`.

        Raises:
            BadRequest: anything else.
        """
        bounds: dict[str, float] = {}
        for part in text.split(","):
            name, equals, value = part.strip().partition("=")
            if name not in MEASURES:
                raise BadRequest(f"no measure {name!r}; {expected(name, MEASURES)}", "slo")
            found = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s)", value.strip())
            if not equals or found is None or float(found[1]) <= 0:
                raise BadRequest(
                    f"{part.strip()!r} is no bound; expected such as {name}=500ms or {name}=2s", "slo"
                )
            bounds[name] = float(found[1]) * UNITS[found[2]]
        return cls(bounds)

    def broken(self, outcome: Outcome) -> dict[str, float]:
        """Return what does not hold, with how many times its bound it is; `refused` if a request was not served."""
        spreads = {name: MEASURES[name](outcome) for name in self.bounds}
        found = {name: one.p99 / self.bounds[name] for name, one in spreads.items() if one is not None}
        over = {name: ratio for name, ratio in found.items() if ratio > 1}
        return over | ({"refused": 1.0 + outcome.refused} if outcome.refused else {})

    def worst(self, outcome: Outcome) -> float:
        """Return how many times its bound the measure is that comes nearest to it, or is furthest beyond."""
        spreads = [(MEASURES[name](outcome), bound) for name, bound in self.bounds.items()]
        return max((one.p99 / bound for one, bound in spreads if one is not None), default=0.0)

    def is_held_for(self, request: RequestTimes) -> bool:
        """Tell whether one request was served within the bounds."""
        if request.refused or request.first_at is None:
            return False
        times = {name: OF_REQUESTS[name](request) for name in self.bounds}
        return all(time is None or time <= self.bounds[name] for name, time in times.items())

    def scaled(self, factor: float) -> ServiceLevel:
        """Return the level with each bound times `factor`."""
        return ServiceLevel({name: bound * factor for name, bound in self.bounds.items()})

    def __str__(self) -> str:
        return ",".join(f"{name}={bound * 1e3:g}ms" for name, bound in self.bounds.items())


@dataclass
class Plan:
    """Result of a search.

    Attributes:
        replicas: the fewest that hold the level; None if none of those that were tried do.
        tried: outcomes by number of replicas.
        breaks_at: how many times the load breaks the level first, with its outcome; None if none that was tried does.
    """

    replicas: int | None
    tried: dict[int, Outcome] = field(default_factory=dict)
    breaks_at: tuple[float, Outcome] | None = None

    @property
    def next_smaller(self) -> Outcome | None:
        """Return the outcome of one replica fewer, which does not hold the level; None where there are not two."""
        return None if self.replicas is None else self.tried.get(self.replicas - 1)


def search(run: Callable[[int, float], Outcome], level: ServiceLevel, most: int) -> Plan:
    """Find the fewest replicas that hold a level, by doubling and then by halving what is left.

    More replicas are taken to be no worse. The two numbers above the found one are tried too, and more load on it.

    Args:
        run: serves the load times its second argument on so many replicas.
        most: the most replicas to try.
    """
    plan = Plan(None)

    def holds(replicas: int) -> bool:
        if replicas not in plan.tried:
            plan.tried[replicas] = run(replicas, 1.0)
        return not level.broken(plan.tried[replicas])

    upper = next((number for number in _doublings(most) if holds(number)), None)
    if upper is None:
        return plan
    lower = max((number for number in plan.tried if number < upper), default=0)
    while upper - lower > 1:
        middle = (lower + upper) // 2
        if holds(middle):
            upper = middle
        else:
            lower = middle
    plan.replicas = upper
    for number in (upper + 1, upper + 2):
        if number <= most:
            holds(number)
    for factor in RATE_STEPS:
        outcome = run(upper, factor)
        if level.broken(outcome):
            plan.breaks_at = (factor, outcome)
            break
    return plan


def what_binds(outcome: Outcome) -> str:
    """Name the resource that an outcome is short of, as far as its figures tell."""
    if outcome.refused:
        return "KV memory: some requests fit into no replica, or into no queue"
    if outcome.preemptions or outcome.memory >= NEARLY_ALL:
        return "KV memory"
    if outcome.busiest >= NEARLY_ALL:
        return "compute"
    return "the time of a step"


def _doublings(most: int) -> Iterator[int]:
    number = 1
    while number < most:
        yield number
        number *= 2
    yield most
