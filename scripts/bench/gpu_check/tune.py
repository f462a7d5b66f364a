"""Times other tiles for attention than those of `kernels/triton/tuning.py`: `--only tune`.

The candidates were chosen by compiling: on Hopper all fit into a program's shared memory and spill nothing, and some
leave room for more programs on a multiprocessor than today's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal
from unittest.mock import patch

from pageant import kernels
from pageant.kernels.base import Kernels
from pageant.kernels.triton.tuning import Attention, attention_tiles
from pageant.scripts.bench.gpu_check.attention import Heads, attention_work
from pageant.scripts.bench.gpu_check.cases import Recorder
from pageant.scripts.bench.gpu_check.measuring import Bench, Case, Run, Work, bench_here, measure_cases

__all__ = ["CANDIDATES", "run", "tuning_cases"]

CANDIDATES: dict[tuple[Literal["decode", "prefill"], int], tuple[tuple[int, int, int, int], ...]] = {
    ("decode", 128): ((16, 64, 4, 5), (16, 128, 4, 5), (16, 32, 4, 9), (16, 64, 8, 7), (16, 64, 4, 9)),
    ("decode", 64): ((16, 128, 4, 5), (16, 128, 4, 7), (16, 64, 4, 9), (16, 64, 4, 5)),
    ("prefill", 128): (
        (64, 64, 4, 5),
        (64, 64, 4, 3),
        (128, 128, 8, 3),
        (128, 64, 8, 7),
        (128, 64, 8, 3),
        (64, 128, 8, 3),
    ),
    ("prefill", 64): ((128, 128, 8, 3), (128, 64, 8, 5), (64, 64, 4, 5), (64, 128, 4, 3)),
}
"""Query rows, context entries, warps and stages to try beside today's, by kernel and head size: 23 with those."""

_TILES = "pageant.kernels.triton.attention.attention_tiles"


def run(recorder: Recorder, tiny: bool) -> None:
    """Compile all candidates in parallel, then time them beside today's."""
    from pageant.scripts.bench.gpu_check.warm import compile_in_parallel

    compile_in_parallel(recorder, tiny, "tune")
    bench = bench_here(tiny=tiny)
    measure_cases(recorder, bench, tuning_cases(bench, kernels.load("triton", bench.device.type)))


def tuning_cases(bench: Bench, ours: Kernels) -> Iterator[Case]:
    """Yield a case for each candidate; the name is a line of the table in `tuning.py`."""
    for (kernel, size), candidates in CANDIDATES.items():
        if bench.device.type == "cpu":  # the interpreter's tiles are small
            tried = [Attention(16, 16, 1, 1)]
        else:
            todays = attention_tiles(kernel, size, bench.dtype, bench.device)
            tried = [todays, *(Attention(*candidate) for candidate in candidates)]
        for tiles in tried:
            yield Case(
                f"{kernel} {size}: {tiles}",
                lambda kernel=kernel, size=size, tiles=tiles: _work(bench, ours, kernel, size, tiles),  # type: ignore[misc]
            )


def _work(bench: Bench, ours: Kernels, kernel: str, size: int, tiles: Attention) -> Work:
    of = bench.of
    lengths = [(1, of(8000, 20))] * of(64) if kernel == "decode" else [(of(4096, 24), of(4096, 24))] * 2
    work = attention_work(bench, ours, lengths, Heads(32, 8, size))

    def tried(run: Run) -> Run:
        def patched() -> None:
            with patch(_TILES, return_value=tiles):
                run()

        return patched

    return replace(work, runs=[tried(run) for run in work.runs])
