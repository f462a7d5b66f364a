"""`pageant bench plan`: what `pageant plan` expects beside what a server then does, of requests that it has not seen.

Each round calibrates a layout anew, as `pageant plan --model` does, plans the requests of each workload, and has a
server answer the same requests over HTTP. Calibration has prompts and lengths of its own. All requests at once show the
throughput; Poisson arrivals at a share of that show first tokens and the time between tokens.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from pageant.actors.runtime.loop import new_event_loop
from pageant.protocol.errors import BadRequest
from pageant.scripts.bench.models import suit
from pageant.scripts.bench.progress import rounds
from pageant.scripts.engine_options import with_engine_options
from pageant.scripts.planning.calibration import calibrate
from pageant.scripts.planning.cluster import PlannedCluster
from pageant.scripts.planning.outcome import Outcome, summed_up
from pageant.scripts.planning.requests import PlannedRequest
from pageant.scripts.planning.search import ServiceLevel, search
from pageant.scripts.planning.shapes import shape_of
from pageant.scripts.replay.load import Load
from pageant.scripts.report import Json, publish, table
from pageant.scripts.tuning.serving import drive, server_of
from pageant.scripts.tuning.workloads import Drawn, Part, named

LATE_SECONDS = 300.0
"""Requests have so long after the last arrival: with all of them at once, the last ones wait."""
VOCABULARY = 250
"""Token ids of prompts, which every vocabulary has."""
OTHER_SEED = 1000
"""Added to a seed for prompts that no run before has left in a cache."""
LEVEL_SLACK = 2.0
"""The bound of the level, over the planned 99th percentile of the larger number of replicas."""
BARS = (
    "The bars, planned over real: 0.90 to 1.10 for tokens/s, whole answers and the time between tokens, "
    "0.85 to 1.15 for first tokens."
)

Row = dict[str, float]


@with_engine_options
def bench(
    engine: dict[str, Any],
    workloads: Annotated[str, typer.Option(help="Of `pageant tune`, by name.")] = "chat,mixed",
    replicas: Annotated[
        str, typer.Option(help="Layouts: numbers of replicas, which share the cores.")
    ] = "1,2",
    cores: Annotated[int, typer.Option(help="Threads that each layout has in sum.")] = 2,
    requests: Annotated[int, typer.Option(help="Of each run.")] = 32,
    share: Annotated[float, typer.Option(help="Of the planned throughput, at which requests arrive.")] = 0.6,
    rounds_: Annotated[int, typer.Option("--rounds", help="Medians count.")] = 3,
    level: Annotated[
        bool, typer.Option(help="Also run the answer of a search, and one replica fewer.")
    ] = True,
    json: Json = None,
) -> None:
    """Measure how far plans are from real runs: throughput, first tokens and the time between tokens."""
    names, layouts = workloads.split(","), [_number(one) for one in replicas.split(",")]
    if not 0 < share <= 1 or min(requests, rounds_, cores) < 1:
        raise BadRequest(
            f"share is {share:g}; expected one above 0 and at most 1, and some requests", "share"
        )
    if max(layouts) > cores:
        raise BadRequest(
            f"{max(layouts)} replicas on {cores} cores; expected one core each at least", "replicas"
        )
    kinds = {name: named(name) for name in names}
    settings = suit(engine, "small-long")
    found: dict[tuple[int, str], list[tuple[Row, Row]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for turn in rounds("plans beside servers", rounds_):
            for number in layouts:
                layout = Layout(Path(folder), settings, number, cores // number, turn)
                for name in names:
                    pair = layout.compare(Drawn(kinds[name], 1.0, VOCABULARY, seed=turn), requests, share)
                    found.setdefault((number, name), []).append(pair)
        held = (
            _level(Path(folder), settings, Drawn(kinds[names[0]], 1.0, VOCABULARY), requests)
            if level
            else None
        )
    rows = [_compared(number, name, pairs) for (number, name), pairs in found.items()]
    figures = {"share": share, "requests": requests, "rounds": rounds_, "comparisons": rows, "level": held}
    publish(figures, [*_lines(rows), BARS, *([] if held is None else [_level_line(held)])], json)


class Layout:
    """Replicas of one shape, calibrated here.

    Args:
        settings: of the engine, with its model.
        turn: tells rounds apart.
    """

    def __init__(
        self, folder: Path, settings: dict[str, Any], replicas: int, threads: int, turn: int
    ) -> None:
        self.replicas = replicas
        own = {**settings, "threads": threads, "enable_prefix_caching": True}
        if replicas > 1:
            own["replicas"] = replicas
        self._topology = folder / f"{replicas}-{threads}.yaml"
        self._topology.write_text(yaml.safe_dump(own))
        path = folder / f"{replicas}-{threads}-{turn}.recording"
        self.measured: Load = calibrate(path, own)
        self.shape = shape_of(self.measured, own)

    def plan(self, requests: list[PlannedRequest], replicas: int | None = None) -> Outcome:
        """Return what is expected of these requests, on this number of replicas or another."""
        speeds = (1.0,) * (self.replicas if replicas is None else replicas)
        return PlannedCluster(self.shape, self.measured.costs, speeds).run(requests)

    def run(self, loads: list[list[PlannedRequest]], warm_up: list[PlannedRequest]) -> list[Outcome]:
        """Return what a server does with loads that have no prompts in common, one after another.

        It has served `warm_up` at once before, as servers have that are not measured in their first second.
        """
        with server_of(self._topology) as server, asyncio.Runner(loop_factory=new_event_loop) as runner:
            found = [
                runner.run(drive(server.url, load, late_seconds=LATE_SECONDS)) for load in (warm_up, *loads)
            ]
        idle = (0.0,) * self.replicas
        return [summed_up(times, self.replicas, idle, 0.0, 0) for times in found[1:]]

    def compare(self, drawn: Drawn, count: int, share: float) -> tuple[Row, Row]:
        """Return the figures of the plan and those of a server, for `count` requests of a workload."""
        drawn = replace(drawn, workload=drawn.workload.fitted(self.shape.max_model_len))
        together = [replace(one, at=0.0) for one in _first(drawn, count)]
        expected = self.plan(together)
        rate = share * count / expected.seconds
        steady = _first(replace(drawn, rate=rate, seed=drawn.seed + OTHER_SEED), count)
        planned = _row(expected, self.plan(steady))
        return planned, _row(*self.run([together, steady], _warm_up(drawn, count)))


def _first(drawn: Drawn, count: int) -> list[PlannedRequest]:
    """Draw the first `count` requests of a part that nothing was fitted to."""
    seconds = 2.0 * count / drawn.rate
    while len(found := drawn.requests(Part.CONFIRMATION, seconds)) < count:
        seconds *= 2
    return found[:count]


def _warm_up(drawn: Drawn, count: int) -> list[PlannedRequest]:
    """Return as many requests of another part, all at once."""
    return [replace(one, at=0.0) for one in drawn.requests(Part.SEARCH, 2.0 * count / drawn.rate)[:count]]


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


def _compared(replicas: int, workload: str, pairs: list[tuple[Row, Row]]) -> dict[str, Any]:
    """Return medians over rounds, and the median of the rounds' ratios."""

    def medians(rows: list[Row]) -> Row:
        return {name: round(statistics.median(row[name] for row in rows), 3) for name in rows[0]}

    planned, real = [one for one, _ in pairs], [other for _, other in pairs]
    ratios = [{name: one[name] / other[name] for name in one} for one, other in pairs]
    return {
        "replicas": replicas,
        "workload": workload,
        "planned": medians(planned),
        "real": medians(real),
        "planned_over_real": medians(ratios),
        "rounds": pairs,
    }


def _level(folder: Path, settings: dict[str, Any], drawn: Drawn, count: int) -> dict[str, Any]:
    """Search for the replicas of one core each that hold a level which one cannot hold; run them, and one fewer."""
    two = Layout(folder, settings, 2, 1, turn=-1)
    drawn = replace(drawn, workload=drawn.workload.fitted(two.shape.max_model_len))
    capacity = count / two.plan([replace(one, at=0.0) for one in _first(drawn, count)]).seconds
    asked = _first(replace(drawn, rate=0.7 * capacity), count)
    expected = two.plan(asked)
    assert expected.first_token is not None, "they were served"
    bound = ServiceLevel({"ttft": LEVEL_SLACK * expected.first_token.p99})
    answer = search(
        lambda number, factor: two.plan([replace(one, at=one.at / factor) for one in asked], number), bound, 2
    )
    warm_up = _warm_up(drawn, count)
    runs = {
        2: two.run([asked], warm_up)[0],
        1: Layout(folder, settings, 1, 1, turn=-1).run([asked], warm_up)[0],
    }
    return {
        "slo": str(bound),
        "answer": answer.replicas,
        "planned": {number: _p99(one) for number, one in sorted(answer.tried.items())},
        "real": {number: _p99(one) for number, one in sorted(runs.items())},
        "holds": {number: not bound.broken(one) for number, one in sorted(runs.items())},
    }


def _p99(outcome: Outcome) -> float | None:
    return None if outcome.first_token is None else round(1e3 * outcome.first_token.p99, 1)


def _level_line(held: dict[str, Any]) -> str:
    real = ", ".join(f"{number}: {p99:,.0f} ms" for number, p99 in held["real"].items())
    return (
        f"A level of {held['slo']} is planned to need {held['answer']} replicas of one core; really ({real})."
    )


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


def _number(text: str) -> int:
    if not text.strip().isdigit() or int(text) < 1:
        raise BadRequest(f"replicas is {text!r}; expected numbers such as 1,2", "replicas")
    return int(text)
