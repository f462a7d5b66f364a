"""Timing on one device: what is timed, how, and the loop over a section's cases."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from pageant.scripts.bench.gpu_check.cases import Recorder, describe

__all__ = ["BLOCK", "Bench", "Case", "Run", "Work", "bench_here", "measure_cases"]

BLOCK = 16
Run = Callable[[], Any]

_CACHE_BYTES = 200e6  # a case's inputs together: four times the second-level cache of an H100
_COPIES_MAX = 64
_TURNS, _TURN_SECONDS = 5, 0.02
_CASE_SECONDS = 1.5  # that must be left for another case


@dataclass(frozen=True)
class Work:
    """Work that a case runs.

    `runs` do the same on inputs of their own, in turn, so that none is found in a cache. `num_bytes` are the bytes
    that one of them must move, `flops` the operations that it must do. `rivals` do the same by other means.
    """

    runs: Sequence[Run]
    num_bytes: float | None = None
    flops: float | None = None
    rivals: Mapping[str, Run] = field(default_factory=dict)
    as_graph: bool = True


@dataclass(frozen=True)
class Case:
    """A name, and what makes its inputs when its turn comes."""

    name: str
    prepare: Callable[[], Work]


class Bench:
    """A device and the timing on it.

    Args:
        device: a GPU; the CPU, where Triton interprets; or `meta`, on which launches compile and nothing is timed.
        tiny: whether shapes are small: a rehearsal.
    """

    def __init__(self, device: torch.device, *, tiny: bool) -> None:
        self.device, self.tiny = device, tiny
        self.on_gpu = device.type == "cuda"
        # The interpreter's products of bfloat16 are wrong.
        self.dtype = torch.float32 if device.type == "cpu" else torch.bfloat16

    def of(self, size: int, least: int = 1) -> int:
        """Return a size, or a small part of it in a rehearsal."""
        return max(least, size // 256) if self.tiny else size

    def copies(self, num_bytes: float) -> int:
        """Return on how many inputs a case must run in turn, so that caches do not hold them."""
        if self.tiny or self.device.type == "meta":
            return 1
        return max(1, min(_COPIES_MAX, -(-int(_CACHE_BYTES) // max(1, int(num_bytes)))))

    def numbers(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """Return normal numbers, [*shape] of `dtype`: the power that products take depends on them."""
        return torch.randn(shape, dtype=dtype or self.dtype, device=self.device)

    def integers(self, *shape: int, below: int, dtype: torch.dtype = torch.int64) -> Tensor:
        """Return uniform whole numbers from 0 on, [*shape] of `dtype`."""
        return torch.randint(below, shape, dtype=dtype, device=self.device)

    def synchronize(self) -> None:
        """Wait for the device. Raises where an earlier kernel failed: then nothing else will run in this process."""
        if self.on_gpu:
            torch.cuda.synchronize()

    def microseconds(
        self,
        runs: Sequence[Run],
        *,
        as_graph: bool = True,
        turns: int = _TURNS,
        seconds: float = _TURN_SECONDS,
    ) -> float:
        """Return the time of one run on the device, the median of several turns of so many seconds.

        As a graph, launches do not count; else the device's time includes its waits for the host.
        """
        if self.tiny:
            return self._turn(lambda: [run() for run in runs], 1) / len(runs) * 1e6
        for run in runs:
            run()  # compiles
        self.synchronize()
        turn = self._graph(runs) if self.on_gpu and as_graph else lambda: [run() for run in runs]
        once = self._turn(turn, 1)
        repeats = max(1, round(seconds / max(once, 1e-6)))
        return statistics.median(self._turn(turn, repeats) for _ in range(turns)) / len(runs) * 1e6

    @staticmethod
    def _graph(runs: Sequence[Run]) -> Run:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for run in runs:
                run()
        return graph.replay

    def _turn(self, turn: Run, repeats: int) -> float:
        if not self.on_gpu:
            began = time.perf_counter()
            for _ in range(repeats):
                turn()
            return (time.perf_counter() - began) / repeats
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        first.record()
        for _ in range(repeats):
            turn()
        last.record()
        last.synchronize()
        milliseconds: float = first.elapsed_time(last)
        return milliseconds / 1000 / repeats

    def measure(self, work: Work) -> dict[str, Any]:
        """Return the figures of a case: `us`, what it moves and computes, and its rivals' times or errors."""
        figures: dict[str, Any] = {"us": round(self.microseconds(work.runs, as_graph=work.as_graph), 2)}
        for name, value in (("bytes", work.num_bytes), ("flops", work.flops)):
            if value is not None:
                figures[name] = value
        if work.rivals:
            figures["rivals"] = {name: self._rival(run, work.as_graph) for name, run in work.rivals.items()}
        return figures

    def _rival(self, run: Run, as_graph: bool) -> float | str:
        try:
            return round(self.microseconds([run], as_graph=as_graph), 2)
        except Exception as error:  # not for these shapes, or not on this device
            self.synchronize()
            return describe(error)


def bench_here(*, tiny: bool) -> Bench:
    """Return a bench on this machine's GPU, or on its CPU in a rehearsal."""
    if tiny:
        return Bench(torch.device("cpu"), tiny=True)
    torch.cuda.set_device(0)
    return Bench(torch.device("cuda:0"), tiny=False)


@torch.inference_mode()
def measure_cases(recorder: Recorder, bench: Bench, cases: Iterable[Case]) -> None:
    """Measure and record each case while there is time. A case that fails ends nothing but itself."""
    torch.manual_seed(0)
    for case in cases:
        if recorder.seconds_left < _CASE_SECONDS:
            recorder.add(case.name, error="not reached: the section's time is over")
            continue
        with recorder.contain(case.name):
            recorder.add(case.name, **bench.measure(case.prepare()))
        bench.synchronize()
