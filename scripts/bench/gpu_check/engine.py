"""The engine as a whole beside transformers: a checkpoint of Qwen3-0.6B's shape, with random weights."""

from __future__ import annotations

import asyncio
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

import pageant
from pageant import kernels
from pageant.models.checkpoint import Checkpoint
from pageant.protocol.statistics import GetExecutorStatistics
from pageant.scripts.bench.gpu_check.cases import Recorder
from pageant.scripts.bench.gpu_check.measuring import BLOCK, Bench, bench_here
from pageant.scripts.bench.gpu_check.models import Stepper, random_decoder
from pageant.scripts.samples.steps import step_inputs

__all__ = ["config_06b", "run", "write_checkpoint"]

_LOADS = ((1, 128), (16, 512), (64, 128))
"""Requests at once, and tokens of each one's prompt."""
_OUTPUT = 128
_OUTPUT_OF_TRANSFORMERS = 32  # whose rate does not depend on how many there are
_PATIENCE = 120.0  # seconds: a step that compiles is slow, and is not to end the executor here
_COMPILED_SECONDS = 25.0  # that transformers' static cache needs at least


def run(recorder: Recorder, tiny: bool) -> None:
    """Measure ours, then transformers, then one step alone."""
    bench = bench_here(tiny=tiny)
    torch.manual_seed(0)
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        path = Path(folder) / "checkpoint"
        began = time.monotonic()
        write_checkpoint(path, bench)
        recorder.add("checkpoint", seconds=round(time.monotonic() - began, 1))
        with recorder.contain("ours"):
            asyncio.run(_serve(recorder, bench, path))
        with recorder.contain("transformers"):
            _generate(recorder, bench, path)
        with recorder.contain("device step, batch 1"), torch.inference_mode():
            context = bench.of(_LOADS[0][1] + _OUTPUT // 2, 20)
            ours = kernels.load("triton", bench.device.type)
            decoder = random_decoder(bench, ours, Checkpoint(path).decoder()[0])
            stepper = Stepper(bench, decoder, -(-context // BLOCK), 1)
            recorder.add("device step, batch 1", **stepper.measure(step_inputs([(1, context)])))


def config_06b(bench: Bench) -> dict[str, Any]:
    """Return Qwen3-0.6B's configuration, or a small one in a rehearsal."""
    tiny = bench.tiny
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_size": 64 if tiny else 1024,
        "intermediate_size": 96 if tiny else 3072,
        "num_hidden_layers": 2 if tiny else 28,
        "num_attention_heads": 4 if tiny else 16,
        "num_key_value_heads": 2 if tiny else 8,
        "head_dim": 16 if tiny else 128,
        "vocab_size": 8192 if tiny else 151936,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
    }


def write_checkpoint(path: Path, bench: Bench) -> None:
    """Write a checkpoint of random weights with the demo model's tokenizer."""
    from transformers import AutoConfig, AutoModelForCausalLM

    settings = config_06b(bench)
    config: Any = AutoConfig.for_model(settings.pop("model_type"), **settings)
    with torch.device(bench.device):
        model: Any = AutoModelForCausalLM.from_config(config, dtype=bench.dtype)  # type: ignore[no-untyped-call]
    model.save_pretrained(path)
    demo = Path(pageant.__file__).parent / "models" / "demo"
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(demo / name, path / name)


def _prompts(batch: int, length: int, bench: Bench) -> list[list[int]]:
    generator = torch.Generator().manual_seed(batch)
    found: list[list[int]] = torch.randint(
        10, 6000, (batch, bench.of(length, 8)), generator=generator
    ).tolist()
    return found


def _loads(bench: Bench) -> tuple[tuple[int, int], ...]:
    return ((1, 8), (4, 8)) if bench.tiny else _LOADS


async def _serve(recorder: Recorder, bench: Bench, path: Path) -> None:
    output = bench.of(_OUTPUT, 8)
    params = pageant.SamplingParams(temperature=0, max_tokens=output, ignore_eos=True)
    device = {"num_blocks": 64} if bench.tiny else {"gpu_memory_utilization": 0.5}
    settings: dict[str, Any] = {"device": str(bench.device), "step_patience": _PATIENCE, **device}
    began = time.monotonic()
    async with pageant.Engine(path, enable_prefix_caching=False, **settings) as engine:
        recorder.add("ready", seconds=round(time.monotonic() - began, 1))
        before = await engine.ask("executor/0", GetExecutorStatistics())
        for batch, length in _loads(bench):
            for timed in (False, True):
                prompts = _prompts(batch, length, bench)
                began = time.monotonic()
                times = await asyncio.gather(*(_arrivals(engine, prompt, params) for prompt in prompts))
                if timed:
                    recorder.add(f"ours, batch {batch}", **_figures(times, time.monotonic() - began, output))
        after = await engine.ask("executor/0", GetExecutorStatistics())
        compiles, captures = (
            after.kernels_loaded - before.kernels_loaded,
            after.graphs_captured - before.graphs_captured,
        )
        recorder.add("after ready", compiles=compiles, captures=captures)


async def _arrivals(
    engine: pageant.Engine, prompt: list[int], params: pageant.SamplingParams
) -> list[tuple[float, int]]:
    """Return when tokens of a request came, and how many."""
    arrivals, known = [], 0
    async for output in engine.generate(prompt, params):
        tokens = len(output.outputs[0].token_ids)
        if tokens > known:
            arrivals.append((time.monotonic(), tokens - known))
            known = tokens
    return arrivals


def _figures(times: list[list[tuple[float, int]]], seconds: float, output: int) -> dict[str, float]:
    """Return tokens a second, and milliseconds between tokens; a step's are those of a token after the first."""
    between = [
        (later - earlier) / tokens
        for arrivals in times
        for (earlier, _), (later, tokens) in pairwise(arrivals)
    ]
    steps = [(arrivals[-1][0] - arrivals[0][0]) / max(1, output - arrivals[0][1]) for arrivals in times]
    return {
        "tokens_per_second": round(len(times) * output / seconds, 1),
        "step_us": round(statistics.median(steps) * 1e6, 1),
        "itl_p50_ms": round(statistics.median(between) * 1e3, 3),
        "itl_p99_ms": round(sorted(between)[int(0.99 * (len(between) - 1))] * 1e3, 3),
    }


def _generate(recorder: Recorder, bench: Bench, path: Path) -> None:
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(path, dtype=bench.dtype)
    model.to(bench.device).eval()
    output = bench.of(_OUTPUT_OF_TRANSFORMERS, 8)

    def rate(batch: int, length: int, **options: Any) -> float:
        ids = torch.tensor(_prompts(batch, length, bench), device=bench.device)
        mask = torch.ones_like(ids)

        def generate(tokens: int) -> None:
            model.generate(
                ids,
                attention_mask=mask,
                min_new_tokens=tokens,
                max_new_tokens=tokens,
                do_sample=False,
                pad_token_id=0,
                **options,
            ).cpu()  # fetched, so that the device is waited for

        generate(4)
        return round(batch * output / _timed(lambda: generate(output)), 1)

    for batch, length in _loads(bench):
        recorder.add(f"transformers, batch {batch}", tokens_per_second=rate(batch, length))
    if recorder.seconds_left > _COMPILED_SECONDS and not bench.tiny:
        with recorder.contain("transformers, static cache, batch 1"):
            tokens_per_second = rate(*_LOADS[0], cache_implementation="static")
            recorder.add("transformers, static cache, batch 1", tokens_per_second=tokens_per_second)


def _timed(run: Callable[[], object]) -> float:
    began = time.monotonic()
    run()
    return time.monotonic() - began
