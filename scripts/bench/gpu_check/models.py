"""Decoders of a shape, with random weights, and steps as the executor computes them."""

from __future__ import annotations

import cProfile
import json
import pstats
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pageant.actors.executor.batch.inputs import StepInputs
from pageant.actors.executor.runners.graphs import CudaCapture, StepGraphs
from pageant.actors.executor.runners.staging import Staging
from pageant.kernels.base import AttentionBatch, Kernels, KVCache
from pageant.models.checkpoint import Checkpoint
from pageant.models.native import NativeDecoder
from pageant.models.spec import DecoderSpec
from pageant.scripts.bench.gpu_check.measuring import BLOCK, Bench
from pageant.scripts.bench.gpu_check.sampling import sampling_params

__all__ = ["Stepper", "random_decoder", "read_spec", "weights_of"]

_SECONDS = 0.3  # of one kind of step
_STEPS_MAX = 40
_STEPS_PROFILED = 20
_FUNCTIONS_PRINTED = 25


def read_spec(config: dict[str, Any]) -> DecoderSpec:
    """Return the specification of a configuration without tied embeddings: no file of weights is looked at."""
    with tempfile.TemporaryDirectory() as folder:
        written = {**config, "tie_word_embeddings": False}
        (Path(folder) / "config.json").write_text(json.dumps(written))
        return Checkpoint(Path(folder)).decoder()[0]


def random_decoder(bench: Bench, ours: Kernels, spec: DecoderSpec) -> NativeDecoder:
    """Return a decoder with random weights."""
    decoder = NativeDecoder(spec, bench.dtype, bench.device, ours)
    for tensor in weights_of(decoder):
        tensor.normal_(std=0.02)
    return decoder


def weights_of(decoder: NativeDecoder) -> list[Tensor]:
    """Return those weights that are tensors, [...] of any dtype."""
    return [weight for weight in decoder.weights() if isinstance(weight, Tensor)]


class Stepper:
    """Computes steps of a decoder as `CudaRunner` does, but for the wait for their tokens."""

    def __init__(self, bench: Bench, decoder: NativeDecoder, num_blocks: int, max_num_seqs: int) -> None:
        self._bench, self._decoder = bench, decoder
        self._caches: list[KVCache] = decoder.allocate_kv_caches(num_blocks + 1, BLOCK)
        for cache in self._caches:
            for part in cache:
                part.normal_()
        self._drawn = torch.zeros(max_num_seqs, dtype=torch.int64, device=bench.device)
        self._staging = Staging(bench.device)
        self._graphs = StepGraphs(
            lambda tokens, positions, batch: decoder.forward(tokens, positions, batch, self._caches),
            CudaCapture() if bench.on_gpu else lambda run: run,
            self._staging,
            last_drawn=self._drawn,
            max_num_seqs=max_num_seqs,
            max_model_len=bench.of(16384, 64),
            block_size=BLOCK,
            spare_block=num_blocks,
            tokens_max=8192,
        )

    @property
    def num_captured(self) -> int:
        """Return how many graphs there are."""
        return self._graphs.num_captured

    def step(self, inputs: StepInputs) -> Callable[[], None]:
        """Return what launches a step, greedy, with all of its copies."""
        params = sampling_params(self._bench, len(inputs.last_tokens), temperature=0.0)
        drawing = torch.from_numpy(inputs.last_tokens).to(self._bench.device)
        rows = torch.from_numpy(inputs.rows.astype(np.int64)).to(self._bench.device)

        def run() -> None:
            hidden = self._graphs.run(inputs) if self._graphs.takes(inputs) else self._eager(inputs)
            tokens = self._decoder.kernels.sample(self._decoder.logits(hidden[drawing]), params)
            self._drawn[rows] = tokens

        return run

    def _eager(self, inputs: StepInputs) -> Tensor:
        token_ids, positions, unknown, unknown_rows, starts, lengths, tables, slots = self._staging.send(
            [
                *(inputs.token_ids, inputs.positions, inputs.unknown, inputs.unknown_rows),
                *(inputs.query_starts, inputs.context_lengths, inputs.block_tables[0], inputs.slots[0]),
            ]
        )
        token_ids[unknown] = self._drawn[unknown_rows]
        batch = AttentionBatch(
            query_starts=starts,
            context_lengths=lengths,
            block_tables=tables,
            slots=slots,
            positions=positions,
            max_query_length=inputs.max_query_length,
            max_context_length=inputs.max_context_length,
        )
        return self._decoder.forward(token_ids, positions, batch, self._caches)

    def measure(self, inputs: StepInputs) -> dict[str, Any]:
        """Return microseconds of a step, and how many kernels and copies it launches.

        `device_us` is between its first kernel and its last, `wall_us` that of one among many that follow each other,
        `host_us` the time of the launching thread.
        """
        run = self.step(inputs)
        first = self._seconds(run, 1)  # compiles, and captures
        if self._bench.tiny:
            return {"wall_us": round(first * 1e6, 1), "host_us": round(first * 1e6, 1)}
        run()
        self._bench.synchronize()
        host = []
        for _ in range(7):
            # The device is idle then: a launch waits for nothing but the host.
            host.append(_timed(run))
            self._bench.synchronize()
        once = self._seconds(run, 1)
        steps = max(3, min(_STEPS_MAX, int(_SECONDS / once)))
        wall = self._seconds(run, steps) / steps
        figures: dict[str, Any] = {
            "wall_us": round(wall * 1e6, 1),
            "host_us": round(statistics.median(host) * 1e6, 1),
        }
        if self._bench.on_gpu:
            figures |= {"device_us": self._device_microseconds(run), **_launches(run)}
        return figures

    def profile(self, inputs: StepInputs) -> None:
        """Print on standard error where the host's time of a step goes: the functions that take most of it."""
        run = self.step(inputs)
        steps = _STEPS_PROFILED
        if self._bench.tiny:
            steps = 1
        else:
            run()
            self._bench.synchronize()
        with cProfile.Profile() as profiled:
            for _ in range(steps):
                run()
        self._bench.synchronize()
        pstats.Stats(profiled, stream=sys.stderr).sort_stats("tottime").print_stats(_FUNCTIONS_PRINTED)

    def _seconds(self, run: Callable[[], None], steps: int) -> float:
        """Return how long some steps take from the first launch to the end of the last."""
        began = time.perf_counter()
        for _ in range(steps):
            run()
        self._bench.synchronize()
        return time.perf_counter() - began

    @staticmethod
    def _device_microseconds(run: Callable[[], None]) -> float:
        """Return the device's time of a step that is launched while the device still waits behind a long kernel."""
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        torch.cuda._sleep(20_000_000)  # type: ignore[no-untyped-call]  # some 10 ms, in which the host is ahead
        first.record()
        run()
        last.record()
        last.synchronize()
        return round(float(first.elapsed_time(last)) * 1000, 1)


def _timed(run: Callable[[], object]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def _launches(run: Callable[[], None]) -> dict[str, int]:
    """Return how many kernels and copies a step consists of; nothing where the profiler does not work."""
    from torch.profiler import ProfilerActivity, profile

    try:
        with profile(activities=[ProfilerActivity.CUDA]) as profiled:
            run()
            torch.cuda.synchronize()
        return {"launches": sum(event.device_type.name == "CUDA" for event in profiled.events() or ())}
    except Exception:
        return {}
