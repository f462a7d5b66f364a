"""Simulated runs of candidates: the planner's cluster, with the costs that were measured here."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pageant.scripts.planning.cluster import PlannedCluster
from pageant.scripts.planning.outcome import Outcome, RequestTimes
from pageant.scripts.planning.replica import ReplicaShape
from pageant.scripts.planning.requests import PlannedRequest
from pageant.scripts.planning.search import ServiceLevel
from pageant.scripts.planning.shapes import shape_of
from pageant.scripts.replay.costs import StepCosts
from pageant.scripts.tuning.measuring import Measurements, tokens_per_step
from pageant.scripts.tuning.space import Candidate
from pageant.scripts.tuning.workloads import Part, Source

SPARE = 0.85
"""Share of each bound that a simulated run must hold, since it leaves out HTTP and other work on the machine."""
REQUESTS_MAX = 1000
"""Requests of a simulated run."""
WORST_WEIGHT, CHANGE_WEIGHT, BROKEN_WEIGHT, WORST_MAX = 0.02, 0.002, 0.1, 5.0
"""Weights of a score: a tenth of a bound is worth as much as a setting that stays the default."""


@dataclass(frozen=True)
class Trial:
    """A run of a candidate, simulated or real."""

    candidate: Candidate
    outcome: Outcome
    good: int
    """Requests that were served within the bounds."""
    worst: float
    """Times its bound of the measure that comes nearest to it, or is furthest beyond."""
    broken: Mapping[str, float]
    """Measures that do not hold, with how many times their bounds they are."""

    @classmethod
    def of(
        cls, candidate: Candidate, outcome: Outcome, times: Sequence[RequestTimes], level: ServiceLevel
    ) -> Trial:
        """Sum up a run."""
        good = sum(level.is_held_for(one) for one in times)
        return cls(candidate, outcome, good, level.worst(outcome), level.broken(outcome))

    @property
    def holds(self) -> bool:
        """Tell whether the service level holds."""
        return not self.broken

    @property
    def share(self) -> float:
        """Return the share of requests that were served within the bounds."""
        return self.good / self.outcome.requests if self.outcome.requests else 0.0

    @property
    def goodput(self) -> float:
        """Return the requests per second that were served within the bounds."""
        return self.good / self.outcome.seconds if self.outcome.seconds else 0.0

    def score(self, changes: int) -> float:
        """Return how good the candidate is: by its share first, then by what is to spare and its few changes."""
        worst = min(self.worst, WORST_MAX)
        lost = WORST_WEIGHT * worst + CHANGE_WEIGHT * changes + (0.0 if self.holds else BROKEN_WEIGHT)
        return self.share - lost

    def as_data(self) -> dict[str, Any]:
        """Return the figures as JSON takes them."""
        one = self.outcome
        return {
            "settings": self.candidate.settings(),
            "requests": one.requests,
            "unserved": one.refused,
            "seconds": round(one.seconds, 3),
            "good": self.good,
            "goodput_requests_per_second": round(self.goodput, 3),
            "output_tokens_per_second": round(one.output_tokens_per_second, 1),
            "ttft": _spread(one.first_token),
            "itl": _spread(one.inter_token),
            "tpot": _spread(one.per_token),
            "e2e": _spread(one.whole),
            "broken": {name: round(ratio, 3) for name, ratio in self.broken.items()},
        }


@dataclass(frozen=True)
class Resources:
    """Changes of a machine, to see what of it binds. Each is a factor of what is there."""

    compute: float = 1.0
    bandwidth: float = 1.0
    host: float = 1.0
    kv_room: float = 1.0

    def changed(self, costs: StepCosts) -> StepCosts:
        """Return the costs of steps on such a machine.

        Tokens and rows are arithmetic; the context is KV that is read. A step's constant part is the host's, as far as
        the device was seen to wait, and else the reading of weights.
        """
        found = costs.fitted
        host = min(costs.host_seconds, found.constant)
        constant = host / self.host + (found.constant - host) / self.bandwidth
        fitted = replace(
            found,
            constant=constant,
            token=found.token / self.compute,
            row=found.row / self.compute,
            context_token=found.context_token / self.bandwidth,
            bends=tuple(one._replace(seconds=one.seconds / self.compute) for one in found.bends),
        )
        return costs.changed(fitted)


@dataclass(frozen=True)
class Simulator:
    """Serves candidates in model time.

    Attributes:
        fixed: settings that the user has chosen.
        seconds: in which requests arrive.
    """

    measured: Measurements
    source: Source
    level: ServiceLevel
    fixed: Mapping[str, Any]
    seconds: float
    routing: str = "prefix"

    def run(
        self, candidate: Candidate, factor: float = 1.0, machine: Resources | None = None, spare: float = 1.0
    ) -> Trial:
        """Serve the requests of the search.

        Args:
            factor: of the requests per second.
            machine: another than this.
            spare: share of each bound that is to hold.
        """
        machine = machine or Resources()
        measured = self.measured.of(candidate)
        shape, costs = self._shape(candidate), machine.changed(measured.load.costs)
        shape = replace(shape, num_blocks=int(shape.num_blocks * machine.kv_room))
        seconds = min(self.seconds, REQUESTS_MAX / (self.source.rate * factor))
        requests = self.source.requests(Part.SEARCH, seconds, factor)
        if drafts := candidate.speculation_tokens:
            tokens = tokens_per_step(self.measured.acceptance, drafts)
            requests = [_shortened(one, tokens) for one in requests]
            fitted = replace(costs.fitted, row=costs.fitted.row + drafts * costs.fitted.token)
            costs = costs.changed(fitted)
        speeds = (1.0,) * candidate.layout.replicas
        cluster = PlannedCluster(shape, costs, speeds, self.routing, serving=measured.serving)
        outcome = cluster.run(requests)
        return Trial.of(candidate, outcome, cluster.requests, self.level.scaled(spare))

    def _shape(self, candidate: Candidate) -> ReplicaShape:
        names = ("max_num_seqs", "max_num_batched_tokens", "policy")
        changes = {name: getattr(candidate, name) for name in names}
        return shape_of(self.measured.of(candidate).load, {**self.fixed, **changes})


def usual_rate(run: Callable[[float], bool], tries: int = 12) -> float:
    """Return the most requests per second that hold, within a tenth, where `run` says whether some do.

    Returns the least that was tried where none holds.
    """
    low, high = 0.0, 1.0
    for _ in range(tries):
        if not run(high):
            break
        low, high = high, high * 2
    for _ in range(tries):
        if low and high / low < 1.1:
            break
        middle = math.sqrt(low * high) if low else high / 2
        if run(middle):
            low = middle
        else:
            high = middle
    return low or high


def _shortened(request: PlannedRequest, tokens: float) -> PlannedRequest:
    """Return a request with as many outputs as steps bring it its tokens in, after the first."""
    output = 1 + math.ceil((request.output_tokens - 1) / tokens)
    most = 1 + math.ceil((request.most_tokens - 1) / tokens)
    return replace(request, output_tokens=output, most_tokens=most)


def _spread(spread: Any) -> dict[str, float] | None:
    return None if spread is None else {name: getattr(spread, name) for name in ("p50", "p99")}
