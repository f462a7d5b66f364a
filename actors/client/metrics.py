"""Counters as `get_metrics` returns them: vLLM's metrics, read from the page that Prometheus gets."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

PREFIX = "vllm:"
PER_POSITION = "position"
"""The label of the counters that are one vector together."""


@dataclass
class Metric:
    """A metric with its labels."""

    name: str
    labels: dict[str, str]


@dataclass
class Counter(Metric):
    """A number that only grows."""

    value: int


@dataclass
class Vector(Metric):
    """Counters in order."""

    values: list[int]


@dataclass
class Gauge(Metric):
    """A number that goes up and down."""

    value: float


@dataclass
class Histogram(Metric):
    """A histogram: the number of values that were at most each bound; `+Inf` is all of them."""

    count: int
    sum: float
    buckets: dict[str, int]


_SAMPLE = re.compile(r"([A-Za-z_:][\w:]*)(?:\{(.*)\})? (\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


def read_page(page: str) -> list[Metric]:
    """Return the metrics under vLLM's names on a page in Prometheus' text format, in its order."""
    kinds: dict[str, str] = {}
    found: dict[tuple[str, tuple[tuple[str, str], ...]], Metric] = {}
    for line in page.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(maxsplit=3)
            kinds[name] = kind
        elif line.startswith(PREFIX) and (match := _SAMPLE.fullmatch(line)) is not None:
            labels = {name: _plain(text) for name, text in _LABEL.findall(match[2] or "")}
            _note(found, kinds, match[1], labels, float(match[3]))
    return list(found.values())


def _plain(text: str) -> str:
    return text.replace('\\"', '"').replace("\\n", "\n").replace("\\\\", "\\")


def _note(
    found: dict[tuple[str, tuple[tuple[str, str], ...]], Metric],
    kinds: dict[str, str],
    name: str,
    labels: dict[str, str],
    value: float,
) -> None:
    """Puts a sample into its metric."""
    kind, base, part = next(_bases(kinds, name), ("gauge", name, ""))
    bound, position = labels.pop("le", "+Inf") if part == "_bucket" else "", labels.pop(PER_POSITION, None)
    short = base.removesuffix("_total") if kind == "counter" else base
    key = short, tuple(sorted(labels.items()))
    if kind == "histogram":
        histogram = found.setdefault(key, Histogram(short, labels, 0, 0.0, {}))
        assert isinstance(histogram, Histogram)
        if part == "_bucket":
            histogram.buckets[bound] = int(value)
        elif part == "_sum":
            histogram.sum = value
        else:
            histogram.count = int(value)
    elif position is not None:
        vector = found.setdefault(key, Vector(short, labels, []))
        assert isinstance(vector, Vector)
        vector.values += [0] * (int(position) + 1 - len(vector.values))
        vector.values[int(position)] = int(value)
    elif kind == "counter":
        found[key] = Counter(short, labels, int(value))
    else:
        found[key] = Gauge(short, labels, value)


def _bases(kinds: dict[str, str], name: str) -> Iterator[tuple[str, str, str]]:
    """The kind and name of the metric that a sample is of, and what the sample's name adds."""
    for part in ("", "_bucket", "_sum", "_count", "_total"):
        base = name.removesuffix(part) if part else name
        if base in kinds and (not part or name.endswith(part)):
            yield kinds[base], base, part
