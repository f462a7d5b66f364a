"""Pairs of ways of doing the same, timed in turns, so that what else runs here slows both."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any

import torch

from pageant.scripts.report import machine

__all__ = ["Pair", "in_turn", "pairs_of_command"]


@dataclass(frozen=True)
class Pair:
    """Median times of both, in microseconds."""

    name: str
    first_us: float
    second_us: float

    @property
    def ratio(self) -> float:
        """Return how many times as fast the second is."""
        return self.first_us / self.second_us


def in_turn(name: str, first: Callable[[int], Any], second: Callable[[int], Any], turns: int) -> Pair:
    """Time both, which are given a number that is never the same for two calls in a row."""
    seconds: tuple[list[float], list[float]] = ([], [])
    for turn in range(turns + 1):
        for index, (run, taken) in enumerate(zip((first, second), seconds, strict=True)):
            began = time.perf_counter()
            run(2 * turn + index)  # neither has the weight that the other has just had
            if turn:  # the first warms up
                taken.append(time.perf_counter() - began)
    return Pair(name, *(round(statistics.median(taken) * 1e6, 1) for taken in seconds))


@torch.inference_mode()
def pairs_of_command(description: str | None, pairs_of: Callable[[int], Iterable[Pair]]) -> None:
    """Print a line for each pair of so many turns, as they come, or all as JSON."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--turns", type=int, default=60)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    pairs = []
    for pair in pairs_of(options.turns):
        pairs.append(pair)
        if not options.json:
            print(
                f"{pair.name:50} {pair.first_us:9.1f} us {pair.second_us:9.1f} us {pair.ratio:5.2f}x",
                flush=True,
            )
    if options.json:
        rows = [asdict(pair) | {"ratio": round(pair.ratio, 3)} for pair in pairs]
        print(json.dumps({"machine": machine(), "threads": options.threads, "pairs": rows}, indent=1))
