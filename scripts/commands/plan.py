"""`pageant plan`: what comes of a load on so many replicas, or how many replicas hold a service level."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from pageant.actors.router.handover import Handover
from pageant.protocol.errors import BadRequest
from pageant.scripts.loads import Arrivals, Lengths
from pageant.scripts.planning.calibration import Calibration, calibrate, calibrate_copies
from pageant.scripts.planning.cluster import PlannedCluster
from pageant.scripts.planning.figures import medians_and_p99s, verdict
from pageant.scripts.planning.outcome import Outcome
from pageant.scripts.planning.replica import ReplicaShape
from pageant.scripts.planning.requests import LoadShape, PlannedRequest, recorded
from pageant.scripts.planning.search import Plan, ServiceLevel, search, what_binds
from pageant.scripts.planning.shapes import shape_of
from pageant.scripts.planning.unplanned import check_recorded, check_settings
from pageant.scripts.replay.load import Load, read_load
from pageant.scripts.report import publish, table

REQUESTS_MIN, REQUESTS_MAX, LOAD_SECONDS = 500, 100_000, 60.0
"""Requests of a run, where their number is not given: as many as come in `LOAD_SECONDS`, within those bounds."""


@dataclass(frozen=True)
class PlannedLoad:
    """The load as it was asked for.

    Attributes:
        input_tokens: None takes the requests of the recording.
        rate: requests per second; None arrives as recorded.
        requests: their number; None lets it follow from the rate.
    """

    input_tokens: str | None
    output_tokens: str
    prefix_tokens: int
    prefixes: int
    rate: float | None
    requests: int | None
    seed: int

    def __post_init__(self) -> None:
        for name, least in (("prefix_tokens", 0), ("prefixes", 1), ("requests", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise BadRequest(f"{name} is {value}; expected at least {least}", name)
        if self.rate is not None and not self.rate > 0:
            raise BadRequest(f"rate is {self.rate:g}; expected requests per second, above 0", "rate")
        if self.input_tokens is not None and self.rate is None:
            raise BadRequest("a drawn load needs a rate: expected --rate with --input-tokens", "rate")

    def draw(self, load: Load, factor: float) -> Iterator[PlannedRequest]:
        """Return the requests, in order of arrival, `factor` times as many per second."""
        if self.input_tokens is None:
            rate = None if self.rate is None else self.rate * factor
            found = recorded(load, self.requests, rate)
            if rate is None and factor != 1:
                found = (replace(one, at=one.at / factor) for one in found)
            return found
        assert self.rate is not None, "drawn loads have one"
        return self.shape(factor).draw(self.requests or _usual_requests(self.rate), self.seed)

    def shape(self, factor: float = 1.0) -> LoadShape:
        """Return the distributions of a drawn load, with `factor` times as many requests per second."""
        assert self.input_tokens is not None and self.rate is not None, "it is drawn"
        return LoadShape(
            Arrivals(self.rate * factor),
            Lengths.parse(self.input_tokens, "input_tokens"),
            Lengths.parse(self.output_tokens, "output_tokens"),
            self.prefix_tokens,
            self.prefixes,
        )


def plan(
    recording: Path | None,
    engine: Mapping[str, Any],
    load: PlannedLoad,
    *,
    replicas: int | None,
    replicas_max: int,
    slo: str | None,
    routing: str,
    json: Path | None,
    prefills: int = 0,
    handover: Handover = "auto",
    copy_rate: float | None = None,
) -> None:
    """Print the figures of so many replicas, or those around the fewest that hold `slo`.

    Args:
        recording: of which the step times, sizes and requests are; None measures `engine`'s model first.
        replicas: None searches, which needs `slo`.
        prefills: how many of the replicas compute prompts for the others.
        handover: whether these do; see `Router.Options`.
        copy_rate: tokens per second whose blocks are copied to a store or from it; None measures it where needed.

    Raises:
        BadRequest: the load or the service level cannot be meant so.
        PageantError: the recording cannot be read, or the model does not start.
    """
    if (replicas is None) == (slo is None):
        raise BadRequest(
            "expected one of --replicas, to see what comes of a load, and --slo, to search", "slo"
        )
    level = None if slo is None else ServiceLevel.parse(slo)
    for name, value in (("replicas", replicas), ("replicas_max", replicas_max)):
        if value is not None and value < 1:
            raise BadRequest(f"{name} is {value}; expected at least 1", name)
    if prefills < 0 or (replicas is not None and prefills >= replicas):
        most = "any number" if replicas is None else f"at most {replicas - 1}"
        raise BadRequest(
            f"prefills is {prefills}; expected at least 0 and {most}: others go on with outputs", "prefills"
        )
    if copy_rate is not None and not copy_rate > 0:
        raise BadRequest(f"copy_rate is {copy_rate:g}; expected tokens per second, above 0", "copy_rate")
    check_settings(engine)
    found = Calibration(read_load(recording)) if recording is not None else _calibrated(engine, load)
    measured, serving = found.load, found.serving
    check_recorded(measured)
    shape = shape_of(measured, engine)
    copy_seconds = None if not prefills else _copy_seconds(recording, engine, copy_rate)
    _check(load, measured, shape)

    def run(number: int, factor: float) -> Outcome:
        options: dict[str, Any] = {"serving": serving}
        if prefills:
            # One replica does everything: there is no other for outputs.
            options |= {
                "prefills": min(prefills, number - 1),
                "handover": handover,
                "copy_seconds": copy_seconds,
            }
        cluster = PlannedCluster(shape, measured.costs, (1.0,) * number, routing, **options)
        began = time.perf_counter()
        outcome = cluster.run(load.draw(measured, factor))
        took = time.perf_counter() - began
        print(f"{number} replicas, {factor:g} times the load: {took:.1f} s", file=sys.stderr, flush=True)
        return outcome

    if level is not None:
        answer = search(run, level, replicas_max)
    else:
        assert replicas is not None, "it is given where no level is"
        answer = Plan(replicas, {replicas: run(replicas, 1.0)})
    data = {
        "shape": asdict(shape),
        "step_seconds": asdict(measured.costs.fitted),
        "serving_seconds": serving.as_data(),
        "prefills": prefills,
        "copy_seconds_per_token": copy_seconds,
        "slo": None if level is None else level.bounds,
        "replicas": answer.replicas,
        "next_smaller": None if answer.next_smaller is None else answer.next_smaller.replicas,
        "outcomes": [outcome.as_data() for _, outcome in sorted(answer.tried.items())],
    }
    publish(data, [*_table(answer, level), *_conclusion(answer, level)], json)


def _calibrated(engine: Mapping[str, Any], load: PlannedLoad) -> Calibration:
    if load.input_tokens is None:
        raise BadRequest(
            "there is no load: expected --recording, or --input-tokens and --rate", "input_tokens"
        )
    print("measuring the times of steps here", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory() as folder:
        return calibrate(Path(folder) / "calibration.recording", engine)


def _copy_seconds(recording: Path | None, engine: Mapping[str, Any], copy_rate: float | None) -> float:
    """Return the seconds that the block of a token takes to be copied to a store, or from it."""
    if copy_rate is not None:
        return 1 / copy_rate
    if recording is not None:
        raise BadRequest(
            "the recording does not say how fast blocks are copied; expected --copy-rate, in tokens per second",
            "copy_rate",
        )
    print("measuring copies to and from a store here", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory() as folder:
        return calibrate_copies(Path(folder) / "copies.recording", engine)


def _check(load: PlannedLoad, measured: Load, shape: ReplicaShape) -> None:
    """Refuse a load that no replica can hold, and a recording without requests."""
    first = next(load.draw(measured, 1.0), None)
    if first is None:
        raise BadRequest("the recording holds no request that was served to its end", "recording")
    if load.input_tokens is not None and (most := load.shape().most_tokens) > shape.max_model_len:
        raise BadRequest(
            f"requests have up to {most} tokens, with prefix and output; expected at most max_model_len, "
            f"{shape.max_model_len}",
            "input_tokens",
        )


def _usual_requests(rate: float) -> int:
    return round(min(REQUESTS_MAX, max(REQUESTS_MIN, rate * LOAD_SECONDS)))


def _table(plan: Plan, level: ServiceLevel | None) -> list[str]:
    header = (
        "replicas",
        "tokens/s",
        "ttft p50",
        "ttft p99",
        "itl p50",
        "itl p99",
        "hits",
        "busy",
        "memory",
        "holds",
    )
    rows = [
        (
            number,
            f"{one.output_tokens_per_second:,.0f}",
            *medians_and_p99s(one.first_token, one.inter_token),
            *(f"{share:.0%}" for share in (one.hit_rate, one.busy, one.memory)),
            "" if level is None else verdict(level.broken(one)),
        )
        for number, one in sorted(plan.tried.items())
    ]
    return table(header, rows)


def _conclusion(plan: Plan, level: ServiceLevel | None) -> list[str]:
    if level is None:
        return []
    if plan.replicas is None:
        nearest = min(plan.tried.values(), key=lambda one: max(level.broken(one).values()))
        return [
            f"no number of replicas up to {max(plan.tried)} holds it; {nearest.replicas} come nearest, and "
            f"{what_binds(nearest)} binds"
        ]
    lines = [f"{plan.replicas} replicas hold it"]
    if (smaller := plan.next_smaller) is not None:
        broken = ", ".join(
            f"{name} is {ratio:.2f}x its bound" for name, ratio in level.broken(smaller).items()
        )
        lines.append(f"the next smaller, {smaller.replicas}, does not: {broken}; {what_binds(smaller)} binds")
    if plan.breaks_at is not None:
        factor, outcome = plan.breaks_at
        first = max(level.broken(outcome).items(), key=lambda one: one[1])[0]
        lines.append(f"with {factor:g} times the load {first} breaks first: {what_binds(outcome)} binds")
    return lines
