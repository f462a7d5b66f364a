"""A histogram with fixed bounds, as Prometheus defines it: cheap enough for every token."""

from __future__ import annotations

from bisect import bisect_left

from pageant.protocol.statistics import HistogramCounts


class Histogram:
    """Counts values by the smallest of `bounds` (ascending) that they do not exceed."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Count a value, `times` times."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times

    def statistics(self) -> HistogramCounts:
        """Return the counts as of now."""
        return HistogramCounts(bounds=self.bounds, counts=tuple(self.counts), sum=self.sum)


def from_1_2_5(low: float, high: float) -> tuple[float, ...]:
    """Return 1, 2 and 5 times the powers of ten, from `low` to `high`."""
    steps = [base * 10.0**power for power in range(-6, 7) for base in (1, 2, 5)]
    return tuple(float(f"{step:g}") for step in steps if low * 0.999 <= step <= high * 1.001)
