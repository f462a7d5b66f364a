"""Distributions of loads: lengths of prompts and outputs, and gaps between arrivals."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass

from pageant.protocol.errors import BadRequest


@dataclass(frozen=True)
class Lengths:
    """Lengths of something: `low` to `high`, evenly; or around `mean`, spread by `deviation`, within those."""

    low: int
    high: int
    mean: float | None = None
    deviation: float = 0.0

    @classmethod
    def parse(cls, text: str, name: str) -> Lengths:
        """Parse `128`, `16:64`, or `normal:256:64` (mean and standard deviation).

        Raises:
            BadRequest: anything else.
        """
        form, *rest = text.split(":")
        try:
            if form == "normal" and len(rest) == 2:
                mean, deviation = float(rest[0]), float(rest[1])
                if mean >= 1 and 0 <= deviation < math.inf and mean < math.inf:
                    return cls(1, round(mean + 4 * deviation), mean, deviation)
            elif len(rest) <= 1 and 1 <= int(form) <= int((rest or [form])[0]):
                return cls(int(form), int((rest or [form])[0]))
        except ValueError:
            pass
        raise BadRequest(f"{name} is {text!r}; expected such as 128, 16:64 or normal:256:64", name)

    def draw(self, rng: random.Random) -> int:
        """Draw a length."""
        if self.mean is None:
            return rng.randint(self.low, self.high)
        return min(self.high, max(self.low, round(rng.gauss(self.mean, self.deviation))))


def parse_rate(text: str) -> float:
    """Parse `20` or `20/s`, requests per second.

    Raises:
        BadRequest: anything else, or none at all.
    """
    try:
        rate = float(text.strip().removesuffix("/s"))
    except ValueError:
        rate = math.nan
    if not 0 < rate < math.inf:
        raise BadRequest(f"rate is {text}; expected requests per second above 0, such as 20 or 20/s", "rate")
    return rate


@dataclass(frozen=True)
class Arrivals:
    """Arrivals of conversations: gaps are drawn from a gamma distribution.

    Attributes:
        rate: conversations per second; infinite is all at once, as far as concurrency allows.
        burstiness: the distribution's shape: 1 is a Poisson process, less is burstier, more is more even.
        ramp_seconds: in which the rate grows evenly from `ramp_from` to `rate`.
    """

    rate: float = math.inf
    burstiness: float = 1.0
    ramp_from: float = 0.0
    ramp_seconds: float = 0.0

    def __post_init__(self) -> None:
        for name, value, least in (
            ("rate", self.rate, 0.0),
            ("burstiness", self.burstiness, 0.0),
            ("ramp_from", self.ramp_from, -1.0),
            ("ramp_seconds", self.ramp_seconds, -1.0),
        ):
            if not value > least or (value == math.inf and name != "rate"):
                raise BadRequest(f"{name} is {value:g}; expected a number above {max(least, 0):g}", name)

    def times(self, rng: random.Random) -> Iterator[float]:
        """Seconds from the start, without end."""
        if self.rate == math.inf:
            yield from itertools.repeat(0.0)
        expected = 0.0  # conversations that are due by then: gaps are drawn in these, and turned to seconds
        while True:
            expected += rng.gammavariate(self.burstiness, 1 / self.burstiness)
            yield self._when(expected)

    def _when(self, expected: float) -> float:
        """The moment by which so many are due: the rate's integral, solved for time."""
        start, slope = self.ramp_from, 0.0
        if self.ramp_seconds:
            slope = (self.rate - start) / self.ramp_seconds
            due = (start + self.rate) / 2 * self.ramp_seconds
            if expected > due:
                return self.ramp_seconds + (expected - due) / self.rate
        else:
            start = self.rate
        if not slope:
            return expected / start
        return (math.sqrt(start * start + 2 * slope * expected) - start) / slope
