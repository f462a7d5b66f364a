"""The figures of a session's cases, and ratios between them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

__all__ = ["Figures"]

Case = dict[str, Any]


class Figures:
    """Looks up cases by section and name. A figure that was not measured is None, and so is all that needs it."""

    def __init__(self, cases: Sequence[Case]) -> None:
        self.cases = cases
        self._by_name = {(case.get("section"), case.get("case")): case for case in cases}

    def figure(self, section: str, case: str, name: str) -> float | None:
        """Return one number of a case."""
        found = self._by_name.get((section, case), {}).get(name)
        return float(found) if isinstance(found, int | float) and not isinstance(found, bool) else None

    def rival(self, section: str, case: str, name: str) -> float | None:
        """Return the microseconds that another implementation took for the same."""
        rivals = self._by_name.get((section, case), {}).get("rivals", {})
        found = rivals.get(name) if isinstance(rivals, dict) else None
        return float(found) if isinstance(found, int | float) else None

    def of_bandwidth(self, section: str, case: str, time: str = "us") -> float | None:
        """Return the bytes that a case must move per second, as a share of what a copy or a read moves, the faster."""
        rates = [self._rate("limits", limit, "bytes") for limit in ("copy", "read")]
        fastest = max((rate for rate in rates if rate is not None), default=None)
        return _ratio(self._rate(section, case, "bytes", time), fastest)

    def of_matrix(self, section: str, case: str, time: str = "us") -> float | None:
        """Return the operations of a case per second, as a share of the large bfloat16 product's."""
        return _ratio(self._rate(section, case, "flops", time), self._rate("limits", "matrix bf16", "flops"))

    def of_rival(self, section: str, case: str, name: str) -> float | None:
        """Return a rival's time over ours: 1 is as fast, 2 is twice as fast."""
        return _ratio(self.rival(section, case, name), self.figure(section, case, "us"))

    def of_rivals_rate(self, section: str, case: str, other: str, name: str) -> float | None:
        """Return the operations of a case per second, over those that a rival did in another case."""
        flops, time = self.figure(section, other, "flops"), self.rival(section, other, name)
        return _ratio(self._rate(section, case, "flops"), _ratio(flops, time))

    def over(
        self, section: str, case: str, other: str, name: str = "us", of_other: str | None = None
    ) -> float | None:
        """Return a figure of one case over that of another."""
        return _ratio(self.figure(section, case, name), self.figure(section, other, of_other or name))

    def total(self, section: str, cases: Iterable[str]) -> float | None:
        """Return the microseconds of several cases together."""
        times = [self.figure(section, case, "us") for case in cases]
        return None if None in times else sum(time for time in times if time is not None)

    def tests(self) -> tuple[int, int]:
        """Return how many tests passed, and how many did not."""
        outcomes = [case["outcome"] for case in self.cases if "outcome" in case]
        return outcomes.count("passed"), outcomes.count("failed")

    def errors(self) -> list[Case]:
        """Return the cases that ended in an error, failed tests included."""
        return [case for case in self.cases if case.get("error") or case.get("outcome") == "failed"]

    def _rate(self, section: str, case: str, what: str, time: str = "us") -> float | None:
        return _ratio(self.figure(section, case, what), self.figure(section, case, time))


def _ratio(above: float | None, below: float | None) -> float | None:
    return None if above is None or not below else above / below


def worst(values: Iterable[float | None], *, at_most: bool = False) -> float | None:
    """Return the value that is farthest from its bar; None where one was not measured."""
    found = list(values)
    measured = [value for value in found if value is not None]
    if not found or len(measured) < len(found):
        return None
    return max(measured) if at_most else min(measured)
