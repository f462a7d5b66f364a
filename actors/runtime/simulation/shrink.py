"""Shortens a failing schedule of faults to a short one that still fails."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pageant.actors.runtime.simulation.faults import Fault

RUNS_MAX = 200


def shrink(
    faults: Sequence[Fault], fails: Callable[[Sequence[Fault]], bool], runs_max: int = RUNS_MAX
) -> list[Fault]:
    """Leave out ever smaller parts for as long as the run still fails (delta debugging, after Zeller).

    Args:
        fails: runs the same seed with these faults.
    """
    kept, size, runs = list(faults), max(1, len(faults) // 2), 0
    while kept and runs < runs_max:
        first, left_out = 0, False
        while first < len(kept) and runs < runs_max:
            fewer = kept[:first] + kept[first + size :]
            runs += 1
            if fails(fewer):
                kept, left_out = fewer, True
            else:
                first += size
        if size == 1 and not left_out:
            break
        size = max(1, size // 2)
    return kept
