"""The last thing that a session prints: its sections, its bars and its errors, in at most 60 lines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pageant.scripts.bench.gpu_check.bars import BARS, Bar
from pageant.scripts.bench.gpu_check.figures import Figures
from pageant.scripts.bench.gpu_check.session import SectionResult

__all__ = ["LINES_MAX", "failed", "session_table"]

LINES_MAX = 60
_WIDTH = 118


def session_table(results: Sequence[SectionResult], cases: Sequence[dict[str, Any]]) -> list[str]:
    """Return the lines of the table."""
    figures = Figures(cases)
    lines = [_title(figures), *_sections(results, figures), "", *_bars(figures)]
    errors = _errors(results, figures)
    room = LINES_MAX - len(lines) - 1
    if len(errors) > room:
        errors = [*errors[: room - 1], f"... and {len(errors) - room + 1} more: see session.json"]
    verdict = "no test failed"
    if failed(results, figures):
        verdict = "a test failed, or a section of tests did not come to its end"
    return [line[:_WIDTH].rstrip() for line in (*lines, *errors, verdict)]


def failed(results: Sequence[SectionResult], figures: Figures) -> bool:
    """Tell whether a test failed, or a section of tests did not come to its end."""
    return figures.tests()[1] > 0 or any(result.tests and not result.well for result in results)


def _title(figures: Figures) -> str:
    facts: dict[str, Any] = next((case for case in figures.cases if case.get("section") == "facts"), {})
    names = ("device", "driver", "torch", "triton", "commit")
    title = (
        "  ".join(f"{name} {facts[name]}" for name in names if facts.get(name)) or "no facts of the device"
    )
    return f"a rehearsal, whose ratios mean nothing: {title}" if facts.get("device") == "cpu" else title


def _sections(results: Sequence[SectionResult], figures: Figures) -> list[str]:
    lines = [f"{'section':<12}{'seconds':>8}{'cases':>7}{'errors':>8}  status"]
    errors = [case.get("section") for case in figures.errors()]
    counted = [case.get("section") for case in figures.cases]
    for result in results:
        name = result.name
        numbers = f"{result.seconds:>8.1f}{counted.count(name):>7}{errors.count(name):>8}"
        lines.append(f"{name:<12}{numbers}  {result.status}")
    return lines


def _bars(figures: Figures) -> list[str]:
    lines = [f"{'bar':<62}{'found':>9}{'must':>7}{'good':>7}"]
    for bar in BARS:
        value = bar.found(figures)
        found = "-" if value is None else _number(value)
        limits = "".join(f"{'-' if limit is None else _number(limit):>7}" for limit in (bar.must, bar.good))
        lines.append(f"{bar.name:<62}{found:>9}{limits}  {_verdict(bar, value)}")
    return lines


def _verdict(bar: Bar, value: float | None) -> str:
    if value is None:
        return "not measured"
    return "met" if bar.met(value) else "MISSED"


def _number(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 20 or value == int(value) else f"{value:.2f}"


def _errors(results: Sequence[SectionResult], figures: Figures) -> list[str]:
    ended = [
        f"{result.name}: {result.status}: {result.tail.splitlines()[-1] if result.tail else ''}"
        for result in results
        if not result.well
    ]
    return ended + [
        f"{case.get('section')}: {case.get('case')}: {case.get('error', 'failed')}"
        for case in figures.errors()
    ]
