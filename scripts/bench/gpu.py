"""The GPU's kernels and models beside the GPU itself: `python -m pageant.scripts.bench.gpu --write gpu.json`.

Everything is put in proportion to what this very device was measured to do in the same run: the bandwidth of a
copy, the rate of a large bfloat16 product, torch's own attention backends, and, with `--model PATH`,
transformers' generation. Kernels are timed as CUDA graphs, so that launches do not count; a time is the median of
several turns. `--tune` times other tiles for attention and prints lines for `kernels/triton/tuning.py`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from pageant import kernels
from pageant.kernels.base import Kernels
from pageant.kernels.triton.tuning import Attention
from pageant.scripts.bench.gpu_kernels import (
    attention_case,
    attention_cases,
    product_cases,
    row_cases,
    sampling_cases,
)
from pageant.scripts.bench.gpu_measuring import BF16, FULL, TINY, Bench, Result
from pageant.scripts.bench.gpu_models import end_to_end, model_cases
from pageant.scripts.bench.report import machine

BARS = {
    "decode attention, 64 x 8000": ("bandwidth", 0.8),
    "prefill attention, 1 x 8192": ("flash", 0.8),
    "8B shape, decode, batch 1": ("bandwidth", 0.8),
    "8B shape, prefill of 4096": ("matrix", 0.55),
}
"""Of the cases with a bar, the ratio that it is on, and where it is."""

TRIED = {
    "decode": [
        Attention(16, entries, warps, stages)
        for entries in (16, 32, 64, 128)
        for warps in (2, 4, 8)
        for stages in (5, 7, 9)
    ],
    "prefill": [
        Attention(rows, entries, warps, stages)
        for rows in (64, 128)
        for entries in (32, 64, 128)
        for warps in (4, 8)
        for stages in (3, 5, 7)
    ],
}


def tune(bench: Bench, ours: Kernels) -> None:
    """Prints the fastest tiles for each head size."""
    from triton.runtime.errors import OutOfResources, PTXASError

    for kernel, tried in TRIED.items():
        sequences = [(1, 8000)] * 64 if kernel == "decode" else [(4096, 4096)] * 2
        for head_dim in (64, 128, 256):
            case = attention_case(bench, ours, kernel, sequences, (32, 8, head_dim))
            times: dict[Attention, float] = {}
            for tiles in tried:
                with (
                    patch("pageant.kernels.triton.attention.attention_tiles", return_value=tiles),
                    contextlib.suppress(OutOfResources, PTXASError),
                ):
                    times[tiles] = bench.seconds(case.run)
            best = sorted(times, key=lambda tiles: times[tiles])[:3]
            for tiles in best:
                print(f"{kernel:8} {head_dim:4}: {tiles}  # {times[tiles] * 1e6:.1f} us", flush=True)


def report(bench: Bench) -> dict[str, Any]:
    """When, on what, and how fast that is."""
    facts: dict[str, Any] = {
        "machine": machine(),
        "device": torch.cuda.get_device_name(bench.device) if bench.on_gpu else "cpu",
        "cuda": torch.version.cuda,
        "dtype": str(bench.dtype).removeprefix("torch."),
        "copy_gigabytes_per_second": round(bench.bytes_per_second / 1e9, 1),
        "matrix_teraflops": round(bench.flops_per_second / 1e12, 1),
    }
    with contextlib.suppress(ImportError):
        import triton

        facts["triton"] = triton.__version__
    return facts


@torch.inference_mode()
def main() -> None:
    """Prints a line for each case, and writes all of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--write", type=Path, help="a file for the figures, as JSON")
    parser.add_argument("--only", default="", help="cases whose name holds this")
    parser.add_argument("--model", help="a checkpoint to generate with, beside transformers")
    parser.add_argument("--tune", action="store_true", help="time other tiles for attention")
    parser.add_argument("--tiny", action="store_true", help="small shapes: whether all of this runs")
    options = parser.parse_args()
    device = torch.device(options.device)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    torch.manual_seed(0)
    # The interpreter's bfloat16 is wrong.
    bench = Bench(device, BF16 if device.type == "cuda" else torch.float32, TINY if options.tiny else FULL)
    ours = kernels.load("triton", options.device)
    facts = report(bench)
    print(json.dumps(facts, indent=1), flush=True)
    if options.tune:
        tune(bench, ours)
        return
    results = []
    for cases in (attention_cases, row_cases, product_cases, sampling_cases, model_cases):
        for case in cases(bench, ours):
            if options.only in case.name:
                results.append(bench.measure(case))
                print(line(results[-1]), flush=True)
    if options.model:
        results += end_to_end(bench, options.model)
    bars = {
        result.name: getattr(result, BARS[result.name][0]) >= BARS[result.name][1]
        for result in results
        if result.name in BARS and getattr(result, BARS[result.name][0]) is not None
    }
    print("bars:", ", ".join(f"{name}: {'met' if met else 'MISSED'}" for name, met in bars.items()))
    if options.write:
        written = {**facts, "bars_met": bars, "results": [asdict(result) for result in results]}
        options.write.write_text(json.dumps(written, indent=1) + "\n")


def line(result: Result) -> str:
    """One result in words."""
    shares = {name: share for name, share in asdict(result).items() if isinstance(share, float)}
    microseconds = shares.pop("microseconds")
    said = ", ".join(f"{share:.0%} of {name}" for name, share in shares.items())
    return f"{result.name:48} {microseconds:12.1f} us  {said}"


if __name__ == "__main__":
    main()
