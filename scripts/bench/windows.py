"""`pageant bench windows`: what it gives that layers with a window have blocks of their own, where others have none.

A Gemma 3 shape with random weights, five of whose six layers have a window, answers long prompts in little memory. In
turn, its layers are in groups, each of which gives back what its window does not reach, and all in one.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from random import Random
from typing import Annotated, Any

import typer

from pageant.actors.client.llm import LLM
from pageant.protocol.sampling import SamplingParams
from pageant.scripts.bench.models import add_tokenizer
from pageant.scripts.bench.progress import rounds
from pageant.scripts.bench.workloads import random_ids
from pageant.scripts.report import Json, in_turns, publish

VOCAB_SIZE = 4096  # no more than the demo's tokenizer has
SHAPE: dict[str, Any] = {
    "hidden_size": 256,
    "intermediate_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "query_pre_attn_scalar": 64,
}


def bench(
    window: Annotated[int, typer.Option(help="Tokens that five of six layers attend over.")] = 256,
    requests: Annotated[int, typer.Option(help="Submitted at once.")] = 24,
    prompt: Annotated[int, typer.Option(help="Tokens of each prompt.")] = 2048,
    output: Annotated[int, typer.Option(help="Tokens of each answer.")] = 128,
    memory: Annotated[str, typer.Option(help="For the KV cache.")] = "32MiB",
    rounds_: Annotated[int, typer.Option("--rounds", help="The median of ratios counts.")] = 3,
    threads: Annotated[int | None, typer.Option(help="That compute.")] = None,
    json: Json = None,
) -> None:
    """Long prompts on a Gemma 3 shape in little memory, with and without blocks of their own for layers with a
    window, in turn."""
    chance = Random(0)
    prompts = [random_ids(chance, prompt) for _ in range(requests)]
    length = prompt + output
    with tempfile.TemporaryDirectory(prefix="pageant-bench-") as folder:
        path = save_gemma(Path(folder) / "gemma3", window, length)
        settings = {"model": path, "max_model_len": length, "kv_cache_memory": memory, "threads": threads}
        settings |= {"max_num_batched_tokens": 512, "enable_prefix_caching": False}
        rows: dict[str, list[dict[str, float]]] = {"grouped": [], "whole": []}
        for turn in rounds("both layouts", rounds_):
            for name in in_turns(list(rows), turn):
                rows[name].append(_run(settings | {"group_layers": name == "grouped"}, prompts, output))
    ratios = [whole["seconds"] / grouped["seconds"] for grouped, whole in zip(*rows.values(), strict=True)]
    figures: dict[str, Any] = {
        "shape": {**SHAPE, "window": window},
        "work": {"requests": requests, "prompt": prompt, "output": output, "kv_cache_memory": memory},
        **{
            name: {what: round(statistics.median(one[what] for one in found), 3) for what in found[0]}
            for name, found in rows.items()
        },
        "times_as_fast": round(statistics.median(ratios), 3),
        "ratios": [round(ratio, 3) for ratio in ratios],
    }
    lines = [
        f"{name:>8}: {figures[name]['seconds']:.2f} s, {figures[name]['tokens_per_step']:.1f} tokens drawn per step, "
        f"{figures[name]['blocks_given_back']:.0f} blocks given back, {figures[name]['preemptions']:.0f} preemptions"
        for name in rows
    ]
    publish(figures, [*lines, f"{figures['times_as_fast']:.2f} times as fast with groups"], json)


def save_gemma(path: Path, window: int, max_model_len: int) -> Path:
    """A checkpoint of random weights, with the demo's tokenizer."""
    import torch
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    torch.manual_seed(0)
    config = Gemma3TextConfig(
        **SHAPE,
        vocab_size=VOCAB_SIZE,
        sliding_window=window,
        max_position_embeddings=max_model_len,
        dtype=torch.bfloat16,
    )
    model: Any = Gemma3ForCausalLM(config)
    model.to(torch.bfloat16).save_pretrained(path)
    add_tokenizer(path)
    return path


def _run(settings: dict[str, Any], prompts: list[list[int]], output: int) -> dict[str, float]:
    """Seconds of an engine of its own, and what happened in it."""
    params = SamplingParams(temperature=0, max_tokens=output, ignore_eos=True, detokenize=False)
    with LLM(progress=False, **settings) as llm:
        llm.generate(prompts[0][:64], params, progress=False)
        before = llm.scheduler_statistics().counters
        began = time.perf_counter()
        llm.generate(prompts, params, progress=False)
        seconds = time.perf_counter() - began
        after, pool = llm.scheduler_statistics().counters, llm.pool_statistics()
    steps = after["steps"] - before["steps"]
    return {
        "seconds": seconds,
        "tokens_per_step": len(prompts) * output / steps,
        "preemptions": after["preemptions"] - before["preemptions"],
        "blocks_given_back": pool.blocks_given_back,
    }
