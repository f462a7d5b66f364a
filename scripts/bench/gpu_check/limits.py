"""Limits of the device at best: every ratio is one to these."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
import triton

from pageant.scripts.bench.gpu_check.cases import Recorder
from pageant.scripts.bench.gpu_check.measuring import Bench, Case, Run, Work, bench_here, measure_cases

__all__ = ["run", "scaled_product"]

_GIB = 1 << 30
_LAUNCHES = 100


@triton.jit  # type: ignore[untyped-decorator]
def nothing() -> None:
    """The kernel that does nothing: its time is that of a launch."""


def run(recorder: Recorder, tiny: bool) -> None:
    """Measure bandwidth, products and launches."""
    bench = bench_here(tiny=tiny)
    measure_cases(recorder, bench, limit_cases(bench))


def limit_cases(bench: Bench) -> Iterator[Case]:
    """Yield the limits, those first that others are held against."""

    def copy() -> Work:
        source, target = (
            torch.empty(bench.of(_GIB, 1024), dtype=torch.uint8, device=bench.device) for _ in range(2)
        )
        source.random_()
        return Work([lambda: target.copy_(source)], num_bytes=2 * source.nbytes)

    def read() -> Work:
        source = bench.numbers(bench.of(_GIB, 1024), dtype=torch.float32)
        return Work([source.sum], num_bytes=source.nbytes)

    side = bench.of(8192, 32)

    def product() -> Work:
        left, right = bench.numbers(side, side), bench.numbers(side, side)
        return Work([lambda: left @ right], flops=2 * side**3)

    def product_of_8_bits() -> Work:
        left, right = (bench.numbers(side, side, dtype=torch.float32) for _ in range(2))
        return Work([scaled_product(left, right)], flops=2 * side**3)

    def launch(as_graph: bool) -> Work:
        runs = [nothing[(1,)]] * (1 if bench.tiny else _LAUNCHES)
        return Work(runs, as_graph=as_graph)

    yield Case("copy", copy)
    yield Case("matrix bf16", product)
    yield Case("read", read)
    yield Case("matrix fp8", product_of_8_bits)
    yield Case("empty kernel in a graph", lambda: launch(True))
    yield Case("empty kernel launched", lambda: launch(False))


def scaled_product(left: torch.Tensor, right: torch.Tensor) -> Run:
    """Return what multiplies left [M, K] by right [N, K] transposed, in float8 with a scale for each row of both."""
    (x, x_scale), (weight, weight_scale) = _in_8_bits(left), _in_8_bits(right)
    recipe = F.ScalingType.RowWise
    return lambda: F.scaled_mm(
        x, weight.T, x_scale, recipe, weight_scale.T, recipe, output_dtype=torch.bfloat16
    )


def _in_8_bits(matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a matrix [R, K] as float8, and what its rows were divided by, float32 [R, 1]."""
    scale = matrix.float().abs().amax(1, keepdim=True).clamp(min=1e-12) / torch.finfo(torch.float8_e4m3fn).max
    return (matrix.float() / scale).to(torch.float8_e4m3fn), scale
