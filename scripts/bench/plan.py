"""`pageant bench plan`: what `pageant plan` expects beside what a server then does, of requests that it has not seen.

A machine's speed may change within seconds. So calibrations and runs of a server take turns, and what all calibrations
have measured makes the plan, which is compared with all runs. Calibration has prompts and lengths of its own. All
requests at once show the throughput; Poisson arrivals at a share of that show first tokens and the time between tokens.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from pageant.protocol.errors import BadRequest
from pageant.scripts.bench.models import suit
from pageant.scripts.bench.plan_layouts import VOCABULARY, Layout, LayoutShape, drawn_requests, warm_up_of
from pageant.scripts.bench.progress import rounds
from pageant.scripts.engine_options import with_engine_options
from pageant.scripts.planning.calibration import Calibration
from pageant.scripts.planning.outcome import Outcome
from pageant.scripts.planning.requests import PlannedRequest
from pageant.scripts.report import Json, publish, table
from pageant.scripts.tuning.workloads import Drawn, Workload, named

OTHER_SEED = 1000
"""Added to a seed for prompts that no run before has left in a cache."""
BARS = (
    "The bars, planned over real: 0.90 to 1.10 for tokens/s, whole answers and the time between tokens, "
    "0.85 to 1.15 for first tokens."
)

Row = dict[str, float]
Loads = tuple[list[PlannedRequest], list[PlannedRequest]]


@with_engine_options
def bench(
    engine: dict[str, Any],
    workloads: Annotated[str, typer.Option(help="Of `pageant tune`, by name.")] = "chat,mixed",
    replicas: Annotated[
        str,
        typer.Option(
            help="Layouts: numbers of replicas, which share the cores. 1+1 is one for prompts and one for outputs."
        ),
    ] = "1,2,1+1",
    cores: Annotated[int, typer.Option(help="Threads that each layout has in sum.")] = 2,
    requests: Annotated[int, typer.Option(help="Of each run.")] = 48,
    share: Annotated[float, typer.Option(help="Of the planned throughput, at which requests arrive.")] = 0.6,
    rounds_: Annotated[int, typer.Option("--rounds", help="Medians count.")] = 5,
    json: Json = None,
) -> None:
    """Measure how far plans are from real runs: throughput, first tokens and the time between tokens."""
    names, layouts = workloads.split(","), [LayoutShape.parse(one) for one in replicas.split(",")]
    if not 0 < share <= 1 or min(requests, rounds_, cores) < 1:
        raise BadRequest(
            f"share is {share:g}; expected one above 0 and at most 1, and some requests", "share"
        )
    if (most := max(one.replicas for one in layouts)) > cores:
        raise BadRequest(f"{most} replicas on {cores} cores; expected one core each at least", "replicas")
    kinds = {name: named(name) for name in names}
    settings = suit(engine, "small-long")
    with tempfile.TemporaryDirectory() as folder:
        served = [
            _Compared(Layout(Path(folder), settings, one, cores // one.replicas), kinds, requests, share)
            for one in layouts
        ]
        for turn in rounds("plans beside servers", rounds_):
            for one in served:
                one.take_turn(turn)
    rows = [row for one in served for row in one.rows()]
    figures = {"share": share, "requests": requests, "rounds": rounds_, "comparisons": rows}
    publish(figures, [*_lines(rows), BARS], json)


class _Compared:
    """Calibrations of a layout, and what its server did between them."""

    def __init__(self, layout: Layout, kinds: dict[str, Workload], count: int, share: float) -> None:
        self._layout, self._kinds, self._count, self._share = layout, kinds, count, share
        self._calibrations: list[Calibration] = []
        # Requests per second of each workload's Poisson arrivals, planned by the first calibration.
        self._rates: dict[str, float] = {}
        # By workload: the requests of each turn, all at once and as they arrive, and what became of them.
        self._served: dict[str, list[tuple[Loads, Row]]] = {name: [] for name in kinds}

    def take_turn(self, turn: int) -> None:
        """Calibrate, and serve each workload."""
        self._calibrations.append(self._layout.calibrate())
        loads = {name: self._loads(name, turn) for name in self._kinds}
        warm_up = warm_up_of(self._drawn(next(iter(self._kinds)), turn), self._count)
        found = iter(self._layout.run([load for pair in loads.values() for load in pair], warm_up))
        for name, pair in loads.items():
            self._served[name].append((pair, _row(next(found), next(found))))

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield the figures of each workload."""
        calibration = Calibration.merged(self._calibrations)
        for name, served in self._served.items():
            planned = [_row(*(self._layout.plan(calibration, load) for load in loads)) for loads, _ in served]
            yield _compared(str(self._layout.layout), name, planned, [row for _, row in served])

    def _drawn(self, name: str, turn: int) -> Drawn:
        longest = self._layout.longest(self._calibrations[0])
        return Drawn(self._kinds[name].fitted(longest), 1.0, VOCABULARY, seed=turn)

    def _loads(self, name: str, turn: int) -> Loads:
        drawn = self._drawn(name, turn)
        together = [replace(one, at=0.0) for one in drawn_requests(drawn, self._count)]
        if name not in self._rates:
            seconds = self._layout.plan(self._calibrations[0], together).seconds
            self._rates[name] = self._share * self._count / seconds
        steady = replace(drawn, rate=self._rates[name], seed=drawn.seed + OTHER_SEED)
        return together, drawn_requests(steady, self._count)


def _row(together: Outcome, steady: Outcome) -> Row:
    if together.refused or steady.refused:
        raise BadRequest(f"{together.refused + steady.refused} requests were not served", "requests")
    spreads = (steady.first_token, steady.inter_token, steady.whole)
    first, between, whole = (0.0 if one is None else 1e3 * one.p50 for one in spreads)
    return {
        "tokens_per_second": together.output_tokens_per_second,
        "first_token_ms": first,
        "between_tokens_ms": between,
        "whole_ms": whole,
    }


def _compared(layout: str, workload: str, planned: list[Row], real: list[Row]) -> dict[str, Any]:
    """Return medians over turns, and the ratios of these."""

    def medians(rows: list[Row]) -> Row:
        return {name: round(statistics.median(row[name] for row in rows), 3) for name in rows[0]}

    expected, found = medians(planned), medians(real)
    return {
        "replicas": layout,
        "workload": workload,
        "planned": expected,
        "real": found,
        "planned_over_real": {name: round(expected[name] / found[name], 3) for name in expected},
        "turns": {"planned": planned, "real": real},
    }


def _lines(rows: list[dict[str, Any]]) -> Iterator[str]:
    names = [*rows[0]["planned"]]
    header = ("replicas, workload", *(f"{name.replace('_', ' ')}: planned, real (ratio)" for name in names))
    yield from table(
        header,
        [
            (
                f"{row['replicas']}, {row['workload']}",
                *(
                    f"{row['planned'][name]:,.1f}, {row['real'][name]:,.1f} ({row['planned_over_real'][name]:.2f})"
                    for name in names
                ),
            )
            for row in rows
        ],
    )
