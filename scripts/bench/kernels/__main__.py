"""The CPU kernels beside the reference and beside the memory: `python -m pageant.scripts.bench.kernels`.

Each case is timed in turns, reference and ours, so that what else runs here slows both; the best of each is
taken. Cases that stream more memory than the caches hold also say how much of the read bandwidth they reach,
which is measured in the same turns. `--threads` is as `threads` of the executor.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch

from pageant import kernels
from pageant.kernels.base import Kernels
from pageant.scripts.bench.kernels.cases import Case, cases
from pageant.scripts.report import machine

QUIET_SECONDS = 0.02  # torch's threads go on spinning for milliseconds, on the cores of whoever is next


@dataclass(frozen=True)
class Result:
    """Microseconds of the best turn of each, and what follows from them."""

    name: str
    reference_us: float
    cpu_us: float
    speedup: float
    bandwidth_share: float | None
    gigaflops: float | None


def measure(case: Case, ours: Kernels, reference: Kernels, bandwidth: Bandwidth, turns: int) -> Result:
    """The best of `turns` turns of each, after one that warms up."""
    best = [float("inf")] * 3
    runs: list[Callable[[], Any]] = [lambda: case.run(reference), lambda: case.run(ours), bandwidth.read]
    # A short case is run often enough for a turn to take about 3 ms.
    repeats = [max(1, round(3e-3 / _seconds(run))) for run in runs[:2]] + [1]
    for turn in range(turns + 1):
        for index, run in enumerate(runs if case.num_bytes else runs[:2]):
            time.sleep(QUIET_SECONDS)
            seconds = _seconds(run, repeats[index])
            best[index] = min(best[index], seconds) if turn else best[index]
    share = None
    if case.num_bytes:
        share = round(case.num_bytes / best[1] / (bandwidth.num_bytes / best[2]), 3)
    flops = round(case.flops / best[1] / 1e9, 1) if case.flops else None
    return Result(
        case.name, round(best[0] * 1e6, 1), round(best[1] * 1e6, 1), round(best[0] / best[1], 2), share, flops
    )


def _seconds(run: Callable[[], Any], repeats: int = 1) -> float:
    began = time.perf_counter()
    for _ in range(repeats):
        run()
    return (time.perf_counter() - began) / repeats


class Bandwidth:
    """Reading memory as fast as it goes: every thread adds up its part of half a gigabyte."""

    def __init__(self) -> None:
        self._memory = torch.ones(1 << 26, dtype=torch.int64)
        self.num_bytes = self._memory.nbytes

    def read(self) -> None:
        """Reads it all once."""
        self._memory.sum()


@torch.inference_mode()
def main() -> None:
    """Prints a line for each case, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--only", default="", help="cases whose name holds this")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--turns", type=int, default=9)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    ours, reference, bandwidth = kernels.load("cpu"), kernels.load("reference"), Bandwidth()
    results = []
    for case in cases():
        if options.only not in case.name:
            continue
        result = measure(case, ours, reference, bandwidth, options.turns)
        results.append(result)
        if not options.json:
            share = f"{result.bandwidth_share:6.0%} of bandwidth" if result.bandwidth_share else ""
            print(
                f"{result.name:54} {result.reference_us:10.1f} us {result.cpu_us:10.1f} us "
                f"{result.speedup:6.2f}x {share}",
                flush=True,
            )
    if options.json:
        rows = [asdict(result) for result in results]
        print(json.dumps({"machine": machine(), "threads": options.threads, "kernels": rows}, indent=1))


if __name__ == "__main__":
    main()
