"""`pageant bench level`: the answer of a plan to a service level, and the next smaller one, both run here.

One replica and two, of one core each, are calibrated first: two share the machine's memory, and their client's core.
The model is large enough for steps to take most of the time: what serves beside them has no core of its own here.
Requests then come faster than one replica is planned to serve them, and slower than two are. The bound of first tokens
lies half way, by ratio, between what is planned of both. Rate and bound are chosen before anything is served.
"""

from __future__ import annotations

import math
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from pageant.protocol.errors import BadRequest
from pageant.scripts.bench.models import suit
from pageant.scripts.bench.plan_layouts import VOCABULARY, Layout, LayoutShape, drawn_requests, warm_up_of
from pageant.scripts.engine_options import with_engine_options
from pageant.scripts.planning.calibration import Calibration
from pageant.scripts.planning.outcome import Outcome
from pageant.scripts.planning.requests import PlannedRequest
from pageant.scripts.planning.search import Plan, ServiceLevel, search
from pageant.scripts.report import Json, publish
from pageant.scripts.tuning.workloads import Drawn, named

NUMBERS = (1, 2)
"""Replicas that are compared."""
MARGIN_MIN = 2.0
"""Times as long as with two replicas that first tokens must be planned to take with one, at least."""


@with_engine_options
def bench(
    engine: dict[str, Any],
    workload: Annotated[str, typer.Option(help="Of `pageant tune`, by name.")] = "chat",
    requests: Annotated[int, typer.Option(min=1, help="Of each run.")] = 96,
    together: Annotated[int, typer.Option(min=1, help="Requests that a replica computes at a time.")] = 4,
    json: Json = None,
) -> None:
    """Run a plan's answer to a service level, and the next smaller: the one holds it, and the other does not."""
    settings = {**suit(engine, "small-wide"), "max_num_seqs": together}
    with tempfile.TemporaryDirectory() as folder:
        candidates = {number: _Candidate.measured(Path(folder), settings, number) for number in NUMBERS}
        drawn = _drawn(workload, candidates[1])
        at_once = [replace(one, at=0.0) for one in drawn_requests(drawn, requests)]
        capacities = [requests / one.plan(at_once).seconds for one in candidates.values()]
        rate = math.sqrt(math.prod(capacities))
        asked = drawn_requests(replace(drawn, rate=rate, seed=1), requests)
        bound = bound_between(*(one.plan(asked) for one in candidates.values()))

        def plan(number: int, factor: float) -> Outcome:
            return candidates[number].plan([replace(one, at=one.at / factor) for one in asked])

        answer = search(plan, bound, max(NUMBERS))
        warm_up = warm_up_of(drawn, requests)
        real = {number: one.layout.run([asked], warm_up)[0] for number, one in candidates.items()}
    if refused := sum(one.refused for one in real.values()):
        raise BadRequest(f"{refused} requests were not served", "requests")
    figures = {"rate": rate, "capacities": capacities, "requests": requests, "max_num_seqs": together}
    publish(figures | _compared(bound, answer, real), _lines(bound, rate, answer, real), json)


@dataclass(frozen=True)
class _Candidate:
    """Number of replicas that can be planned and served, and what was measured of it."""

    layout: Layout
    calibration: Calibration

    @classmethod
    def measured(cls, folder: Path, settings: dict[str, Any], number: int) -> _Candidate:
        layout = Layout(folder, settings, LayoutShape(number), threads=1)
        return cls(layout, layout.calibrate())

    def plan(self, requests: list[PlannedRequest]) -> Outcome:
        return self.layout.plan(self.calibration, requests)


def _drawn(workload: str, candidate: _Candidate) -> Drawn:
    longest = candidate.layout.longest(candidate.calibration)
    return Drawn(named(workload).fitted(longest), 1.0, VOCABULARY)


def bound_between(smaller: Outcome, larger: Outcome) -> ServiceLevel:
    """Return a bound of first tokens half way, by ratio, between those of fewer replicas and of more.

    Raises:
        BadRequest: they are too near one another.
    """
    assert larger.first_token is not None and smaller.first_token is not None, "requests were served"
    low, high = larger.first_token.p99, smaller.first_token.p99
    if high < MARGIN_MIN * low:
        raise BadRequest(
            f"first tokens are planned to take {high / low:.1f} times as long with one replica; expected "
            f"{MARGIN_MIN:g} at least, by more requests or fewer at a time",
            "requests",
        )
    return ServiceLevel({"ttft": round(math.sqrt(low * high), 3)})


def _compared(bound: ServiceLevel, answer: Plan, real: dict[int, Outcome]) -> dict[str, Any]:
    return {
        "slo": str(bound),
        "answer": answer.replicas,
        "planned_first_token_p99_ms": {number: _p99(found) for number, found in sorted(answer.tried.items())},
        "real_first_token_p99_ms": {number: _p99(found) for number, found in sorted(real.items())},
        "planned_holds": {number: not bound.broken(found) for number, found in sorted(answer.tried.items())},
        "holds": {number: not bound.broken(found) for number, found in sorted(real.items())},
    }


def _p99(outcome: Outcome) -> float | None:
    return None if outcome.first_token is None else round(1e3 * outcome.first_token.p99, 1)


def _lines(bound: ServiceLevel, rate: float, answer: Plan, real: dict[int, Outcome]) -> list[str]:
    lines = [f"{bound} at {rate:.1f} requests a second: planned to need {answer.replicas} replicas"]
    for number, outcome in sorted(real.items()):
        planned, found = _p99(answer.tried[number]), _p99(outcome)
        lines.append(
            f"{number} of one core: p99 of first tokens {found:,.0f} ms (planned {planned:,.0f} ms), "
            f"{'does not hold' if bound.broken(outcome) else 'holds'}"
        )
    return lines
