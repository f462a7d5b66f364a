"""Prometheus' text format: samples gathered by metric, each metric's head written once."""

from __future__ import annotations

from collections.abc import Mapping

from pageant.protocol.statistics import HistogramCounts

PREFIX = "pageant:"  # before the names of metrics that are this software's own
Labels = Mapping[str, str]


class Page:
    """Samples, in the order in which their metrics were first named. `prefix` stands before their names."""

    def __init__(self, prefix: str = PREFIX) -> None:
        self._prefix = prefix
        self._metrics: dict[str, list[str]] = {}  # its head, then its samples

    def gauge(self, name: str, about: str, value: float, labels: Labels) -> None:
        """Add a sample of a metric that goes up and down."""
        self._samples(name, "gauge", about).append(self._sample(name, labels, value))

    def counter(self, name: str, about: str, value: float, labels: Labels) -> None:
        """Add a sample of a metric that only grows."""
        self._samples(name, "counter", about).append(self._sample(name, labels, value))

    def counters(self, name: str, about: str, label: str, values: Mapping[str, int], labels: Labels) -> None:
        """Add a sample for each value of a label; the metric is there even if none is."""
        samples = self._samples(name, "counter", about)
        samples += [
            self._sample(name, {**labels, label: key}, value) for key, value in sorted(values.items())
        ]

    def histogram(self, name: str, about: str, counts: HistogramCounts, labels: Labels) -> None:
        """Values by bounds, which they do not exceed."""
        samples = self._samples(name, "histogram", about)
        total = 0
        bounds = [*(f"{bound:g}" for bound in counts.bounds), "+Inf"]
        for bound, count in zip(bounds, counts.counts, strict=True):
            total += count
            samples.append(self._sample(f"{name}_bucket", {**labels, "le": bound}, total))
        samples.append(self._sample(f"{name}_sum", labels, counts.sum))
        samples.append(self._sample(f"{name}_count", labels, total))

    def text(self) -> str:
        """The page."""
        return "\n".join(line for lines in self._metrics.values() for line in lines) + "\n"

    def _samples(self, name: str, kind: str, about: str) -> list[str]:
        head = f"# HELP {self._prefix}{name} {about}\n# TYPE {self._prefix}{name} {kind}"
        return self._metrics.setdefault(name, [head])

    def _sample(self, name: str, labels: Labels, value: float) -> str:
        shown = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items())
        number = str(int(value)) if value == int(value) else repr(float(value))
        return f"{self._prefix}{name}{{{shown}}} {number}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
