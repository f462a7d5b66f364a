"""Sampling over Qwen's vocabulary: microseconds, since the logits fit into a GPU's cache."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from pageant import kernels
from pageant.actors.executor.batch.shaping import Entries, Shaping, shape_logits
from pageant.kernels.base import Kernels, SamplingTensors, TokenMasks
from pageant.scripts.bench.gpu_check.cases import Recorder
from pageant.scripts.bench.gpu_check.measuring import Bench, Case, Work, bench_here, measure_cases

__all__ = ["run", "sampling_cases", "sampling_params"]

_VOCABULARY = 151_936
_PENALISED = 500  # tokens of a row that a penalty is for
_LOGPROBS = 20
_WAYS: dict[str, dict[str, float]] = {
    "greedy": {"temperature": 0.0},
    "temperature": {},
    "top_k and top_p": {"top_k": 50, "top_p": 0.9},
    "top_k": {"top_k": 50},
    "top_p": {"top_p": 0.9},
    "min_p": {"min_p": 0.05},
}


def run(recorder: Recorder, tiny: bool) -> None:
    """Measure it for 64 rows, for 1 and for 256."""
    bench = bench_here(tiny=tiny)
    measure_cases(recorder, bench, sampling_cases(bench, kernels.load("triton", bench.device.type)))


def sampling_cases(bench: Bench, ours: Kernels) -> Iterator[Case]:
    """Yield the cases."""
    for rows in (64, 1, 256):
        for name, way in _WAYS.items():
            yield Case(f"{name}, {rows} rows", lambda rows=rows, way=way: _sample(bench, ours, rows, way))  # type: ignore[misc]
        yield Case(f"masked, {rows} rows", lambda rows=rows: _masked(bench, ours, rows))  # type: ignore[misc]
        yield Case(f"20 logprobs, {rows} rows", lambda rows=rows: _logprobs(bench, ours, rows))  # type: ignore[misc]
        yield Case(f"penalties, {rows} rows", lambda rows=rows: _penalised(bench, ours, rows))  # type: ignore[misc]


def sampling_params(bench: Bench, rows: int, **way: float) -> SamplingTensors:
    """Return parameters that are the same for all rows, but for the seeds."""
    device = bench.device

    def floats(name: str, otherwise: float) -> torch.Tensor:
        return torch.full((rows,), way.get(name, otherwise), device=device)

    every = torch.arange(rows, device=device)
    return SamplingTensors(
        temperature=floats("temperature", 1.0),
        top_k=floats("top_k", 0).int(),
        top_p=floats("top_p", 1.0),
        min_p=floats("min_p", 0.0),
        seed=every,
        sample=torch.zeros(rows, dtype=torch.int32, device=device),
        position=every,
        filters="top_k" in way or "top_p" in way,
    )


def _logits(bench: Bench, rows: int) -> torch.Tensor:
    return 3 * bench.numbers(bench.of(rows), bench.of(_VOCABULARY, 300), dtype=torch.float32)


def _sample(bench: Bench, ours: Kernels, rows: int, way: dict[str, float]) -> Work:
    logits = _logits(bench, rows)
    params = sampling_params(bench, len(logits), **way)
    return Work([lambda: ours.sample(logits, params)])


def _masked(bench: Bench, ours: Kernels, rows: int) -> Work:
    logits = _logits(bench, rows)
    params = sampling_params(bench, len(logits))
    words = -(-logits.shape[1] // 32)
    bits = bench.integers(len(logits), words, below=1 << 31, dtype=torch.int32)
    masks = TokenMasks(torch.arange(len(logits), device=bench.device), bits)
    return Work([lambda: ours.sample(logits, params, masks)])


def _logprobs(bench: Bench, ours: Kernels, rows: int) -> Work:
    logits = _logits(bench, rows)
    tokens = bench.integers(len(logits), below=logits.shape[1])
    return Work([lambda: ours.top_logprobs(logits, tokens, _LOGPROBS)])


def _penalised(bench: Bench, ours: Kernels, rows: int) -> Work:
    """Penalties come from the host in every step, so that this is no graph."""
    logits = _logits(bench, rows)
    params, shaping = sampling_params(bench, len(logits)), _shaping(*logits.shape)

    def run() -> Any:
        shape_logits(logits, shaping)
        return ours.sample(logits, params)

    return Work([run], as_graph=False)


def _shaping(rows: int, vocabulary: int) -> Shaping:
    penalised = min(_PENALISED, vocabulary)
    generator = np.random.default_rng(0)
    tokens = [np.sort(generator.choice(vocabulary, penalised, replace=False)) for _ in range(rows)]
    counts = Entries(
        np.repeat(np.arange(rows), penalised), np.concatenate(tokens), np.ones(rows * penalised, np.float32)
    )
    return Shaping(penalties=np.tile(np.array([1.1, 0.1, 0.1], np.float32), (rows, 1)), counts=counts)
