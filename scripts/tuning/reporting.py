"""Report of a tune: what was tried, what was chosen, what binds."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pageant.scripts.planning.figures import medians_and_p99s, verdict
from pageant.scripts.planning.search import ServiceLevel
from pageant.scripts.report import machine, table
from pageant.scripts.tuning.binding import Binding
from pageant.scripts.tuning.measuring import Measurements
from pageant.scripts.tuning.simulating import Trial


@dataclass
class Tuning:
    """Result of a tune.

    Attributes:
        simulated: candidates that were simulated, the best first.
        tried: real runs with the requests of the choice, the defaults first.
        confirmed: real runs with requests of their own: the defaults, and candidates until one holds the level.
        answer: the candidate that held the level in both; None if none did.
        nearest: the real run that came nearest.
    """

    simulated: list[Trial]
    tried: list[Trial]
    confirmed: list[Trial]
    answer: Trial | None
    nearest: Trial
    binding: Binding
    measured: Measurements
    rate: float


def lines_of(found: Tuning, level: ServiceLevel, output: Path) -> Iterator[str]:
    """Yield the report in words."""
    header = (
        "real run",
        "good/s",
        "good",
        "ttft p50",
        "ttft p99",
        "itl p50",
        "itl p99",
        "simulated",
        "holds",
    )
    shares = {one.candidate: f"{one.share:.0%}" for one in found.simulated}
    rows = []
    for stage, trials in (("", found.tried), ("again: ", found.confirmed)):
        for one in trials:
            spreads = (one.outcome.first_token, one.outcome.inter_token)
            rows.append(
                (
                    f"{stage}{one.candidate}",
                    *(f"{one.goodput:.2f}", f"{one.share:.0%}", *medians_and_p99s(*spreads)),
                    *(shares.get(one.candidate, "-"), verdict(one.broken)),
                )
            )
    yield f"{len(found.simulated)} candidates simulated, {len(found.tried)} run, at {found.rate:.3g} requests a second"
    yield from table(header, rows)
    for (layout, quantization), why in found.measured.failures.items():
        yield f"left out: {layout} {quantization or ''}: {why}"
    yield from found.binding.lines()
    if found.answer is None:
        one = found.nearest
        yield f"nothing that was tried holds {level}; nearest comes {one.candidate}: {verdict(one.broken)}"
    else:
        yield f"{output} holds {level}: {found.answer.candidate}"
        yield from _compared(found)


def _compared(found: Tuning) -> Iterator[str]:
    """Yield the goodput of the answer beside that of the defaults, with requests that chose neither."""
    assert found.answer is not None
    defaults = found.confirmed[0]  # they are run again first
    if defaults.candidate == found.answer.candidate:
        yield "these are the defaults"
    elif defaults.goodput:
        ratio = found.answer.goodput / defaults.goodput
        own = found.answer.goodput
        yield f"{own:.2f} good requests a second, {ratio:.2f} times the defaults' {defaults.goodput:.2f}"
    else:
        yield f"{found.answer.goodput:.2f} good requests a second; the defaults serve none"


def comments_of(found: Tuning, level: ServiceLevel) -> Iterator[str]:
    """Yield what is written above the topology."""
    own = machine()
    yield f"pageant tune, {datetime.date.today().isoformat()}, {own['cpu']}, {own['cores']} cores"
    yield f"service level {level} at {found.rate:.3g} requests a second"
    yield from _compared(found) if found.answer is not None else ()
    yield found.binding.lines()[0]


def data_of(found: Tuning, level: ServiceLevel) -> dict[str, Any]:
    """Return the figures as JSON has them."""
    defaults = found.confirmed[0] if found.confirmed else found.tried[0]
    answer = found.answer
    return {
        "slo": level.bounds,
        "rate": found.rate,
        "step_seconds": {
            f"{layout} {quantization or 'as it comes'}": {
                **asdict(one.load.costs.fitted),
                "host": round(one.load.costs.host_seconds, 6),
                "serving": one.serving.as_data(),
            }
            for (layout, quantization), one in found.measured.calibrations.items()
        },
        "draft_acceptance": found.measured.acceptance,
        "simulated": [
            {"share": round(one.share, 4), "worst": round(one.worst, 3), **one.candidate.settings()}
            for one in found.simulated
        ],
        "tried": [one.as_data() for one in found.tried],
        "confirmed": [one.as_data() for one in found.confirmed],
        "binding": asdict(found.binding),
        "defaults_goodput": round(defaults.goodput, 3),
        "answer": None if answer is None else answer.candidate.settings(),
        "answer_goodput": None if answer is None else round(answer.goodput, 3),
        "goodput_ratio": round(answer.goodput / defaults.goodput, 3) if answer and defaults.goodput else None,
    }
