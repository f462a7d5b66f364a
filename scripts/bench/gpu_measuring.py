"""What the GPU benchmark times with, and what it says: sizes, cases, and their shares of what the device can do."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

BF16 = torch.bfloat16
BLOCK = 16


@dataclass(frozen=True)
class Sizes:
    """How large the cases are. `TINY` is for finding out on any device whether this script runs at all."""

    scale: int = 1
    turns: int = 7
    turn_seconds: float = 0.05

    def of(self, size: int, least: int = 1) -> int:
        """A size that falls with the scale."""
        return max(least, size // self.scale)


FULL, TINY = Sizes(), Sizes(scale=256, turns=1, turn_seconds=0.0)


@dataclass(frozen=True)
class Case:
    """Something to time, what it moves and multiplies at the least, and what else does the same."""

    name: str
    run: Callable[[], Any]
    num_bytes: float | None = None
    flops: float | None = None
    rivals: tuple[tuple[str, Callable[[], Any]], ...] = ()
    as_graph: bool = True


@dataclass(frozen=True)
class Result:
    """Microseconds, and shares of what the device or a rival does: 1 is as good."""

    name: str
    microseconds: float
    bandwidth: float | None = None
    matrix: float | None = None
    flash: float | None = None
    cudnn: float | None = None
    transformers: float | None = None


class Bench:
    """One device, its measured limits, and the timing."""

    def __init__(self, device: torch.device, dtype: torch.dtype, sizes: Sizes) -> None:
        self.device, self.dtype, self.sizes = device, dtype, sizes
        self.on_gpu = device.type == "cuda"
        self.bytes_per_second = self._copy_rate(sizes.of(1 << 30, 1024))
        self.flops_per_second = self._product_rate(sizes.of(8192, 32))

    def _copy_rate(self, size: int) -> float:
        source, target = torch.empty((2, size), dtype=torch.uint8, device=self.device).unbind()
        return 2 * size / self.seconds(lambda: target.copy_(source))

    def _product_rate(self, side: int) -> float:
        left, right = self.numbers(side, side), self.numbers(side, side)
        return 2 * side**3 / self.seconds(lambda: left @ right)

    def numbers(self, *shape: int) -> Tensor:
        """Normal numbers; the power that products take, and so the clock, depends on them."""
        return torch.randn(shape, dtype=torch.float32, device=self.device).to(self.dtype)

    def integers(self, *shape: int, below: int) -> Tensor:
        return torch.randint(below, shape, device=self.device)

    def seconds(self, run: Callable[[], Any], as_graph: bool = True) -> float:
        """The median turn."""
        run()  # compiles
        if self.on_gpu and as_graph:
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                run()
            run = graph.replay
        once = self._turn(run, 1)
        repeats = max(1, round(self.sizes.turn_seconds / max(once, 1e-6)))
        return statistics.median(self._turn(run, repeats) for _ in range(self.sizes.turns))

    def _turn(self, run: Callable[[], Any], repeats: int) -> float:
        if not self.on_gpu:
            began = time.perf_counter()
            for _ in range(repeats):
                run()
            return (time.perf_counter() - began) / repeats
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        first.record()
        for _ in range(repeats):
            run()
        last.record()
        last.synchronize()
        milliseconds: float = first.elapsed_time(last)
        return milliseconds / 1000 / repeats

    def measure(self, case: Case) -> Result:
        """Times a case and its rivals."""
        seconds = self.seconds(case.run, case.as_graph)
        shares = {}
        if case.num_bytes is not None:
            shares["bandwidth"] = case.num_bytes / seconds / self.bytes_per_second
        if case.flops is not None:
            shares["matrix"] = case.flops / seconds / self.flops_per_second
        for name, rival in case.rivals:
            with contextlib.suppress(RuntimeError):  # not for these shapes, or not on this device
                shares[name] = self.seconds(rival, case.as_graph) / seconds
        rounded = {name: round(share, 3) for name, share in shares.items()}
        return Result(case.name, round(seconds * 1e6, 1), **rounded)
