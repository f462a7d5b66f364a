"""Norms, activations and rotations over the rows of a prefill: a matter of bandwidth alone."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from pageant import kernels
from pageant.kernels.base import HeadNorms, Kernels
from pageant.scripts.bench.gpu_check.attention import LLAMA, Heads
from pageant.scripts.bench.gpu_check.cases import Recorder
from pageant.scripts.bench.gpu_check.measuring import BLOCK, Bench, Case, Work, bench_here, measure_cases

__all__ = ["row_cases", "run"]


def run(recorder: Recorder, tiny: bool) -> None:
    """Measure them over 8192 rows of an 8B model."""
    bench = bench_here(tiny=tiny)
    measure_cases(recorder, bench, row_cases(bench, kernels.load("triton", bench.device.type)))


def row_cases(bench: Bench, ours: Kernels) -> Iterator[Case]:
    """Yield the cases. Their inputs are larger than the caches."""
    rows, hidden, inner = (bench.of(size, 32) for size in (8192, 4096, 14336))

    def norm() -> Work:
        x, residual, weight = bench.numbers(rows, hidden), bench.numbers(rows, hidden), bench.numbers(hidden)
        return Work([lambda: ours.add_rms_norm(x, residual, weight, 1e-6)], num_bytes=4 * x.nbytes)

    def activation() -> Work:
        gate_up = bench.numbers(rows, 2 * inner)
        return Work([lambda: ours.silu_and_mul(gate_up)], num_bytes=1.5 * gate_up.nbytes)

    def heads() -> Work:
        num_heads, kv_heads, size = Heads(4, 2, 32) if bench.tiny else LLAMA
        query, key, value = (bench.numbers(rows, count, size) for count in (num_heads, kv_heads, kv_heads))
        norms = HeadNorms(query=bench.numbers(size), key=bench.numbers(size), eps=1e-6, wide=False)
        table = bench.numbers(rows, size, dtype=torch.float32)
        places = torch.arange(rows, device=bench.device)
        keys, values = (bench.numbers(rows // BLOCK, kv_heads, BLOCK, size) for _ in range(2))
        return Work(
            [lambda: ours.rope_and_write_kv(query, key, value, table, places, keys, values, places, norms)],
            num_bytes=2 * (query.nbytes + key.nbytes + value.nbytes) + table.nbytes,
        )

    yield Case("add_rms_norm", norm)
    yield Case("silu_and_mul", activation)
    yield Case("rope_and_write_kv", heads)
