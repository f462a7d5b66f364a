"""`pageant bench recurrent`: a model with recurrent layers, a long prompt that is new and one that is repeated.

Nine of the twelve layers of a small Qwen3-Next shape with random weights are gated DeltaNets. In turn, Pageant and
transformers answer prompts that nobody has had before, and Pageant prompts that begin like one that it has had.
The first token of a new prompt takes the prefill; that of a repeated one restores states.
"""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
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
    "hidden_size": 512,
    "num_hidden_layers": 12,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 8,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "intermediate_size": 512,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 256,
    "shared_expert_intermediate_size": 256,
}
BLOCK_SIZE = 128  # so that a sequence's states take at most 16 blocks
SHORT = 256  # tokens of the prompts behind which decode steps are timed

Prompt = list[int]


def bench(
    prompt: Annotated[int, typer.Option(help="Tokens of the prefix that is repeated.")] = 4000,
    own: Annotated[int, typer.Option(help="Tokens behind it that differ.")] = 16,
    output: Annotated[int, typer.Option(help="Tokens of an answer whose decode steps are timed.")] = 64,
    rounds_: Annotated[int, typer.Option("--rounds", help="The median of them counts.")] = 3,
    memory: Annotated[str, typer.Option(help="For the KV cache and states.")] = "2GiB",
    dtype: Annotated[str, typer.Option(help="Of the weights.")] = "bfloat16",
    threads: Annotated[int | None, typer.Option(help="That compute.")] = None,
    beside: Annotated[bool, typer.Option(help="Measure transformers in turn.")] = True,
    json: Json = None,
) -> None:
    """A long prompt on a Qwen3-Next shape, new and repeated, and decode steps; beside transformers."""
    chance = random.Random(0)
    took: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="pageant-bench-") as folder:
        path = save_qwen3_next(Path(folder) / "qwen3-next", dtype)
        engines: dict[str, Any] = {"pageant": None}
        if beside:
            engines["transformers"] = _Transformers(path, threads)
        length = prompt + own + output
        with LLM(
            path,
            progress=False,
            block_size=BLOCK_SIZE,
            max_model_len=length,
            kv_cache_memory=memory,
            threads=threads,
        ) as llm:
            engines["pageant"] = _Pageant(llm)
            for engine in engines.values():
                engine.seconds(random_ids(chance, min(prompt, 300)), 4)
            for turn in rounds("prompts", rounds_):
                prefix = random_ids(chance, prompt)
                for name in in_turns(list(engines), turn):
                    one = _measure(engines[name], prefix, lambda: random_ids(chance, own), output)
                    for what, seconds in one.items():
                        took.setdefault(f"{name}_{what}", []).append(seconds)
    publish(*_report(took, prompt, own, output, dtype), json)


class _Pageant:
    """An engine that finds prefixes that it has had."""

    def __init__(self, llm: LLM) -> None:
        self._llm = llm

    def seconds(self, prompt: Prompt, output: int) -> float:
        """Return how long an answer of so many tokens takes."""
        params = SamplingParams(temperature=0, max_tokens=output, ignore_eos=True, detokenize=False)
        began = time.perf_counter()
        self._llm.generate([prompt], params, progress=False)
        return time.perf_counter() - began


class _Transformers:
    """transformers' own model, which has a prompt's states only while it answers it."""

    def __init__(self, path: Path, threads: int | None) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        if threads is not None:
            torch.set_num_threads(threads)
        self._model: Any = AutoModelForCausalLM.from_pretrained(path, dtype="auto")

    def seconds(self, prompt: Prompt, output: int) -> float:
        """Return how long an answer of so many tokens takes."""
        import torch

        began = time.perf_counter()
        with torch.inference_mode():
            ids = torch.tensor([prompt])
            mask = torch.ones_like(ids)
            self._model.generate(
                ids, attention_mask=mask, max_new_tokens=output, min_new_tokens=output, do_sample=False
            )
        return time.perf_counter() - began


def _measure(engine: Any, prefix: Prompt, own: Callable[[], Prompt], output: int) -> dict[str, float]:
    """Return the seconds of the first token of a new prompt and, from Pageant, a repeated one; and those of a step."""
    found = {"new": engine.seconds(prefix + own(), 1)}
    if isinstance(engine, _Pageant):
        found["repeated"] = engine.seconds(prefix + own(), 1)
    short = prefix[:SHORT]
    engine.seconds(short, 1)  # a prefix hit from now on, if there are any
    first = engine.seconds(short, 1)
    return found | {"step": (engine.seconds(short, output) - first) / (output - 1)}


def _report(
    took: dict[str, list[float]], prompt: int, own: int, output: int, dtype: str
) -> tuple[dict[str, Any], list[str]]:
    median = {name: statistics.median(each) for name, each in took.items()}
    ratios = [new / old for new, old in zip(took["pageant_new"], took["pageant_repeated"], strict=True)]
    figures: dict[str, Any] = {
        "shape": {**SHAPE, "dtype": dtype},
        "work": {"prompt": prompt, "own": own, "output": output, "block_size": BLOCK_SIZE},
        "seconds": {name: round(one, 4) for name, one in median.items()},
        "rounds": {name: [round(one, 4) for one in each] for name, each in took.items()},
        "new_over_repeated": round(statistics.median(ratios), 2),
    }
    lines = []
    for name in ("pageant", "transformers"):
        if f"{name}_new" in median:
            speed = figures[f"{name}_prefill_tokens_per_second"] = round(
                (prompt + own) / median[f"{name}_new"]
            )
            lines.append(
                f"{name:>12}: first token of {prompt + own:,} new ones after {median[f'{name}_new']:.3f} s "
                f"({speed:,} tokens/s), a decode step {1e3 * median[f'{name}_step']:.2f} ms"
            )
    lines.append(
        f"{'pageant':>12}: first token behind {prompt:,} repeated ones after {median['pageant_repeated']:.3f} s, "
        f"{figures['new_over_repeated']:.1f} times as soon"
    )
    return figures, lines


def save_qwen3_next(path: Path, dtype: str) -> Path:
    """A checkpoint of random weights, with the demo's tokenizer."""
    import torch
    from transformers import Qwen3NextConfig, Qwen3NextForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    torch.manual_seed(0)
    config = Qwen3NextConfig(**SHAPE, vocab_size=VOCAB_SIZE, max_position_embeddings=32_768, dtype=dtype)
    model: Any = Qwen3NextForCausalLM(config)
    model.to(getattr(torch, dtype)).save_pretrained(path)
    add_tokenizer(path)
    return path
