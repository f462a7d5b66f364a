"""Rounds of a benchmark, with a line on standard error that says how far it is and how long the rest takes."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator


def rounds(what: str, count: int) -> Iterator[int]:
    """Yield 0 to count - 1, and say before each round what it is and when the last one ends, from the rounds so far.

    On a terminal one line is written over; elsewhere each round has a line of its own.
    """
    began = time.monotonic()
    for number in range(count):
        left = ""
        if number:
            left = f", about {describe_seconds((time.monotonic() - began) / number * (count - number))} to go"
        _say(f"{what}: round {number + 1} of {count}{left}", keep=False)
        yield number
    _say(f"{what}: {count} rounds in {describe_seconds(time.monotonic() - began)}", keep=True)


def describe_seconds(seconds: float) -> str:
    """`40 s`, or `3 min 20 s`."""
    whole = max(1, round(seconds))
    return f"{whole} s" if whole < 120 else f"{whole // 60} min {whole % 60:02d} s"


def _say(line: str, *, keep: bool) -> None:
    if not sys.stderr.isatty():
        print(line, file=sys.stderr, flush=True)
        return
    print(f"\r\x1b[K{line}", end="\n" if keep else "", file=sys.stderr, flush=True)
