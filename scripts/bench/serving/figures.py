"""Figures of a load: throughput, goodput, and latencies by their mean, median and 99th percentile."""

from __future__ import annotations

import statistics
from array import array
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pageant.protocol.errors import BadRequest
from pageant.scripts.http_client import Answer

LATENCIES = {
    "ttft": "time to first token",
    "tpot": "time per output token",
    "itl": "inter-token latency",
    "e2e": "end-to-end latency",
}
GOODPUT = "goodput_requests_per_second"


@dataclass
class Results:
    """Times of the answers that are kept, in seconds."""

    ttft: array[float] = field(default_factory=lambda: array("d"))
    tpot: array[float] = field(default_factory=lambda: array("d"))  # of answers with two tokens or more
    itl: array[float] = field(default_factory=lambda: array("d"))
    e2e: array[float] = field(default_factory=lambda: array("d"))
    ends: array[float] = field(default_factory=lambda: array("d"))  # since the start
    output_tokens: array[int] = field(default_factory=lambda: array("l"))
    prompt_tokens: int = 0
    good: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0

    def add(self, answer: Answer, began: float, limits: dict[str, float]) -> None:
        """An answer that is complete.

        Args:
            limits: see `parse_limits`.
        """
        taken = {"ttft": answer.first - answer.sent, "e2e": answer.last - answer.sent}
        if answer.output_tokens > 1:
            taken["tpot"] = (answer.last - answer.first) / (answer.output_tokens - 1)
            self.tpot.append(taken["tpot"])
        self.ttft.append(taken["ttft"])
        self.e2e.append(taken["e2e"])
        self.itl.extend(answer.gaps)
        self.ends.append(answer.last - began)
        self.output_tokens.append(answer.output_tokens)
        self.prompt_tokens += answer.prompt_tokens
        self.good += all(taken.get(name, 0.0) <= limit for name, limit in limits.items())

    def report(self, limits: dict[str, float]) -> dict[str, Any]:
        """Return the figures as JSON has them: latencies in milliseconds."""
        tokens, seconds = sum(self.output_tokens), self.seconds
        return {
            "seconds": round(seconds, 3),
            "completed": len(self.e2e),
            "failed": sum(self.failures.values()),
            "failures": dict(self.failures.most_common(10)),
            "prompt_tokens": self.prompt_tokens,
            "output_tokens": tokens,
            "requests_per_second": round(len(self.e2e) / seconds, 3),
            "output_tokens_per_second": round(tokens / seconds, 1),
            "tokens_per_second": round((tokens + self.prompt_tokens) / seconds, 1),
            **({GOODPUT: round(self.good / seconds, 3)} if limits else {}),
            **{name: _summary(getattr(self, name)) for name in LATENCIES},
        }


def _summary(values: array[float]) -> dict[str, float] | None:
    if not values:
        return None
    p90, p99 = np.percentile(values, (90, 99))
    figures = {"mean": statistics.fmean(values), "median": statistics.median(values), "p90": p90, "p99": p99}
    return {name: round(1e3 * float(value), 3) for name, value in figures.items()}


def parse_limits(text: str | None) -> dict[str, float]:
    """Parse `ttft:500,tpot:50` (milliseconds): what an answer may take, in seconds, to count as good.

    Raises:
        BadRequest: it is something else.
    """
    limits = {}
    for part in text.split(",") if text else ():
        name, _, value = part.partition(":")
        if name not in ("ttft", "tpot", "e2e") or not value.replace(".", "", 1).isdigit():
            raise BadRequest(f"goodput is {text!r}; expected such as ttft:500,tpot:50,e2e:10000", "goodput")
        limits[name] = float(value) / 1e3
    return limits


def table(report: dict[str, Any]) -> str:
    """Return the figures as lines for reading."""
    lines = [
        f"{report['completed']} answers in {report['seconds']:.1f} s, {report['failed']} failed",
        f"{'requests/s':>24}: {report['requests_per_second']:.2f}"
        + (f" ({report[GOODPUT]:.2f} within the limits)" if GOODPUT in report else ""),
        f"{'output tokens/s':>24}: {report['output_tokens_per_second']:.0f}"
        f" ({report['tokens_per_second']:.0f} with the prompts')",
        f"{'milliseconds':>24}  {'mean':>9} {'median':>9} {'p90':>9} {'p99':>9}",
    ]
    for name, title in LATENCIES.items():
        row = report[name]
        if row is not None:
            cells = " ".join(f"{row[figure]:>9.2f}" for figure in ("mean", "median", "p90", "p99"))
            lines.append(f"{title:>24}: {cells}")
    lines += [f"{count:>24} x {why}" for why, count in report["failures"].items()]
    return "\n".join(lines)
