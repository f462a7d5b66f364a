"""Figures of a run, and how two runs of the same requests differ."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from pageant.scripts.replay.timeline import Course
from pageant.scripts.report import table
from pageant.scripts.spread import Spread


@dataclass(frozen=True)
class Figures:
    """Figures of one run. Latencies are of the requests that were served to their end in all compared runs."""

    ends: dict[str, int]
    output_tokens: int
    seconds: float
    first_token: Spread | None
    next_token: Spread | None
    whole: Spread | None
    queue: Spread | None
    prompt_tokens: int
    cached_tokens: int
    preemptions: int


@dataclass(frozen=True)
class Differences:
    """Differences from the run before. The shares are of all pairs of requests: those of which the other one was
    first."""

    started_in_other_order: float
    ended_in_other_order: float
    same_tokens: int
    other_tokens: int


def figures(courses: Sequence[Course], compared: Sequence[int]) -> Figures:
    """Return the figures of a run.

    Args:
        compared: numbers of the requests whose latencies count.
    """
    served = [courses[number] for number in compared]
    times = [course.submitted_at for course in courses]
    last = [course.last_at for course in courses if course.last_at is not None]
    return Figures(
        ends=dict(sorted(Counter(course.end for course in courses).items())),
        output_tokens=sum(len(course.token_ids) for course in courses),
        seconds=max(last, default=min(times)) - min(times),
        first_token=_spread(served, first_token),
        next_token=_spread(served, next_token),
        whole=_spread(served, whole),
        queue=_spread(served, lambda course: course.finished.queue_seconds if course.finished else None),
        prompt_tokens=sum(course.num_prompt_tokens for course in served),
        cached_tokens=sum(course.finished.num_cached_tokens for course in served if course.finished),
        preemptions=sum(course.finished.num_preemptions for course in courses if course.finished),
    )


def first_token(course: Course) -> float | None:
    """Seconds until a request's first token."""
    return None if course.first_at is None else course.first_at - course.submitted_at


def next_token(course: Course) -> float | None:
    """Seconds between its tokens."""
    if course.first_at is None or course.last_at is None or len(course.token_ids) < 2:
        return None
    return (course.last_at - course.first_at) / (len(course.token_ids) - 1)


def whole(course: Course) -> float | None:
    """Seconds until its end."""
    return None if course.last_at is None else course.last_at - course.submitted_at


def _spread(courses: Sequence[Course], seconds: Callable[[Course], float | None]) -> Spread | None:
    return Spread.of([value for value in map(seconds, courses) if value is not None])


def comparable(runs: Sequence[Sequence[Course]]) -> list[int]:
    """Numbers of the requests that were served to their end in every run."""
    return [number for number, one in enumerate(zip(*runs, strict=True)) if all(run.served for run in one)]


def differences(before: Sequence[Course], after: Sequence[Course], compared: Sequence[int]) -> Differences:
    """Return how a run differs from another."""
    same = sum(before[number].token_ids == after[number].token_ids for number in compared)
    started = [[run[number].first_at or 0.0 for number in compared] for run in (before, after)]
    ended = [[run[number].last_at or 0.0 for number in compared] for run in (before, after)]
    return Differences(
        started_in_other_order=round(inverted(*started), 6),
        ended_in_other_order=round(inverted(*ended), 6),
        same_tokens=same,
        other_tokens=len(compared) - same,
    )


def inverted(before: Sequence[float], after: Sequence[float]) -> float:
    """The share of all pairs whose order is another. Those that are equal in either are in order."""
    seen: list[float] = []
    pairs = 0
    times = sorted(zip(before, after, strict=True))
    for first, group in _groups(times):
        del first
        pairs += sum(len(seen) - _not_above(seen, value) for value in group)
        for value in group:
            insort(seen, value)
    count = len(times)
    return pairs / (count * (count - 1) / 2) if count > 1 else 0.0


def _groups(times: list[tuple[float, float]]) -> list[tuple[float, list[float]]]:
    groups: list[tuple[float, list[float]]] = []
    for before, after in times:
        if not groups or groups[-1][0] != before:
            groups.append((before, []))
        groups[-1][1].append(after)
    return groups


def _not_above(values: list[float], value: float) -> int:
    return bisect_left(values, np.nextafter(value, np.inf))


def as_table(
    names: Sequence[str], runs: Sequence[Figures], differ: Sequence[Differences | None]
) -> list[str]:
    """A column for each run."""
    rows: list[tuple[str, ...]] = []

    def row(name: str, value: Callable[[Figures], str]) -> None:
        rows.append((name, *map(value, runs)))

    for end in sorted({end for run in runs for end in run.ends}):
        row(f"ended: {end}", lambda run, end=end: str(run.ends.get(end, 0)))  # type: ignore[misc]
    row("seconds in all", lambda run: f"{run.seconds:.2f}")
    row(
        "output tokens per second",
        lambda run: f"{run.output_tokens / run.seconds:.1f}" if run.seconds else "-",
    )
    latencies = (
        ("first token", "first_token"),
        ("next token", "next_token"),
        ("whole answer", "whole"),
        ("in the queue", "queue"),
    )
    for name, field in latencies:
        for part in ("mean", "p50", "p90", "p99"):
            row(f"{name}, ms, {part}", lambda run, f=field, p=part: _milliseconds(getattr(run, f), p))  # type: ignore[misc]
    row("prompt tokens from the cache", lambda run: f"{_percent(run.cached_tokens, run.prompt_tokens)}")
    row("preemptions", lambda run: str(run.preemptions))

    def difference(name: str, value: Callable[[Differences], str]) -> None:
        rows.append((name, *("" if one is None else value(one) for one in differ)))

    difference(
        "pairs that started the other way round", lambda one: f"{100 * one.started_in_other_order:.1f} %"
    )
    difference("pairs that ended the other way round", lambda one: f"{100 * one.ended_in_other_order:.1f} %")
    difference("requests with other tokens", lambda one: str(one.other_tokens))
    return table(("", *names), rows)


def _milliseconds(spread: Spread | None, part: str) -> str:
    return "-" if spread is None else f"{1e3 * getattr(spread, part):.1f}"


def _percent(part: int, of: int) -> str:
    return f"{100 * part / of:.1f} %" if of else "-"


def as_data(
    names: Sequence[str],
    runs: Sequence[Sequence[Course]],
    found: Sequence[Figures],
    differ: Sequence[Differences | None],
    *,
    requests: bool,
) -> list[dict[str, Any]]:
    """Each run as an object; with `requests`, each of its requests too."""
    data = []
    for name, run, of, difference in zip(names, runs, found, differ, strict=True):
        one: dict[str, Any] = {"run": name, **asdict(of)}
        one["differences"] = None if difference is None else asdict(difference)
        if requests:
            one["requests"] = [_row(course, run[0].submitted_at) for course in run]
        data.append(one)
    return data


def _row(course: Course, began: float) -> dict[str, Any]:
    return {
        "submitted_at": round(course.submitted_at - began, 6),
        "prompt_tokens": course.num_prompt_tokens,
        "output_tokens": len(course.token_ids),
        "first_token": first_token(course),
        "whole": whole(course),
        "end": course.end,
        "cached_tokens": course.finished.num_cached_tokens if course.finished else None,
        "preemptions": course.finished.num_preemptions if course.finished else None,
    }
