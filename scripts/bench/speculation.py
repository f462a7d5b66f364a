"""`pageant bench speculation`: what drafts bring, what they cost, and how often they are right.

    known       one stream; the drafter knows the answer, and says each token of it with a given chance: what the
                engine alone makes of drafts
    copy        one stream whose logits are biased so that the answer repeats the prompt; n-gram drafts
    useless     sixteen streams, nothing is ever right, `auto`: what speculation costs where it brings nothing
    acceptance  the packaged demo model, questions that it has not been trained on: tokens for each verification
    ngram       256 sequences of 8,000 tokens: one step of the n-gram drafter

Times are of two engines in one process, in turn: with speculation, and without.
"""

from __future__ import annotations

import contextlib
import random
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import numpy as np
import torch
import typer

from pageant.actors.client.llm import LLM
from pageant.actors.drafter.base import SequenceDrafter
from pageant.actors.drafter.ngram import NgramDrafter
from pageant.actors.executor.batch.processors import ProcessedRow
from pageant.protocol.arrays import int32, int64
from pageant.protocol.drafting import Speculation
from pageant.protocol.sampling import SamplingParams
from pageant.scripts.bench.progress import rounds
from pageant.scripts.bench.workloads import random_ids
from pageant.scripts.engine_options import DEMO_MODEL, with_engine_options
from pageant.scripts.report import Json, in_turns, publish
from pageant.scripts.samples.questions import QUESTIONS

HERE = "pageant.scripts.bench.speculation"
ANSWERS: dict[tuple[int, ...], list[int]] = {}  # by prompt: what `Known` knows


class Known(SequenceDrafter):
    """Says the right token with the chance that `options` give, and else a wrong one."""

    def guess(self, token_ids: Sequence[int], wanted: int) -> Sequence[int]:
        """See `SequenceDrafter`."""
        prompt = self.settings.options["prompt"]
        answer = ANSWERS.get(tuple(token_ids[:prompt]), [])
        done = len(token_ids) - prompt
        return [
            token if self._is_right(place) else token ^ 1
            for place, token in enumerate(answer[done : done + wanted], len(token_ids))
        ]

    def _is_right(self, place: int) -> bool:
        return random.Random(place).random() < float(self.settings.options["rate"])


class CopyPrompt:
    """A logits processor: the answer is the prompt, again and again."""

    def wants(self, params: SamplingParams) -> bool:
        """See `LogitsProcessor`."""
        return bool(params.extra_args and params.extra_args.get("copy_prompt"))

    def apply(self, logits: torch.Tensor, rows: Sequence[ProcessedRow]) -> torch.Tensor:
        """See `LogitsProcessor`. logits: float32 [rows, vocab_size], mutated and returned."""
        for row, found in zip(logits, rows, strict=True):
            prompt = found.prompt_token_ids
            row[int(prompt[len(found.output_token_ids) % len(prompt)])] += 1e4
        return logits


@with_engine_options
def bench(
    engine: dict[str, Any],
    only: Annotated[str | None, typer.Option(help="known, copy, useless, acceptance or ngram.")] = None,
    tokens: Annotated[int, typer.Option(help="Drafts in a step.")] = 4,
    rate: Annotated[float, typer.Option(help="How often `known` is right.")] = 0.8,
    prompt: Annotated[int, typer.Option(help="Tokens of a prompt.")] = 128,
    output: Annotated[int, typer.Option(help="Tokens of an answer.")] = 128,
    batch: Annotated[int, typer.Option(help="Streams of `useless`.")] = 16,
    pairs: Annotated[int, typer.Option(help="Of runs with and without speculation, in turn.")] = 5,
    useless_pairs: Annotated[int, typer.Option(help="Likewise, of `useless`.")] = 10,
    json: Json = None,
) -> None:
    """Speculative decoding: its gain, its cost, and how often it is right."""
    engine = {"max_model_len": 2 * (prompt + output), "num_blocks": 1024, **engine}
    prompts = [random_ids(random.Random(seed), prompt) for seed in range(batch)]
    greedy = SamplingParams(temperature=0, max_tokens=output, ignore_eos=True, detokenize=False)
    copying = SamplingParams(**{**_fields(greedy), "extra_args": {"copy_prompt": True}})
    known = {"method": f"{HERE}:Known", "tokens": tokens, "options": {"rate": rate, "prompt": prompt}}
    useless = {**known, "options": {"rate": 0.0, "prompt": prompt}}
    ngram = {"method": "ngram", "tokens": tokens}
    runs: dict[str, Callable[[], dict[str, Any]]] = {
        "known": lambda: _compare(engine, known, prompts[:1], greedy, pairs),
        "copy": lambda: _compare(engine, ngram, prompts[:1], copying, pairs),
        "useless": lambda: _compare(engine, useless, prompts, greedy, useless_pairs),
        "acceptance": lambda: _acceptance(tokens),
        "ngram": _ngram_cost,
    }
    if only is not None and only not in runs:
        raise typer.BadParameter(f"found {only!r}; expected {', '.join(runs)}", param_hint="--only")
    figures = {name: run() for name, run in runs.items() if only in (None, name)}
    publish(figures, [line for name, row in figures.items() for line in _lines(name, row)], json)


def _fields(params: SamplingParams) -> dict[str, Any]:
    return {name: getattr(params, name) for name in params.__struct_fields__}


def _compare(
    engine: dict[str, Any],
    speculation: dict[str, Any],
    prompts: list[list[int]],
    params: SamplingParams,
    pairs: int,
) -> dict[str, Any]:
    """Seconds with and without speculation; who is first takes turns."""
    topology = {"actors": {"executor": {"options": {"logits_processors": [f"{HERE}:CopyPrompt"]}}}}
    with contextlib.ExitStack() as stack:
        without, with_drafts = (
            stack.enter_context(LLM(progress=False, topology=topology, **{**engine, "speculation": some}))
            for some in (None, speculation)
        )
        right = without.generate(prompts, params)
        ANSWERS.update(
            (tuple(one), found.outputs[0].token_ids) for one, found in zip(prompts, right, strict=True)
        )
        with_drafts.generate(prompts, params)
        both = (with_drafts, without)
        took = [
            {each: _seconds(each, prompts, params) for each in in_turns(both, turn)}
            for turn in rounds("with and without drafts", pairs)
        ]
        counters = with_drafts.scheduler_statistics().counters
    return {
        "streams": len(prompts),
        "without_seconds": round(statistics.median(pair[without] for pair in took), 3),
        "with_seconds": round(statistics.median(pair[with_drafts] for pair in took), 3),
        "speedup": round(statistics.median(pair[without] / pair[with_drafts] for pair in took), 3),
        "pairs": [[round(pair[without], 3), round(pair[with_drafts], 3)] for pair in took],
        **_acceptance_of(counters),
    }


def _acceptance_of(counters: dict[str, int]) -> dict[str, Any]:
    verifications = counters["verifications"]
    found: dict[str, Any] = {
        name: counters[name] for name in ("verifications", "drafts_proposed", "drafts_accepted")
    }
    if verifications:
        found["tokens_per_verification"] = round(1 + counters["drafts_accepted"] / verifications, 3)
    found["accepted_at"] = [
        count for name, count in counters.items() if name.startswith("drafts_accepted_at_")
    ]
    return found


def _seconds(llm: LLM, prompts: list[list[int]], params: SamplingParams) -> float:
    began = time.perf_counter()
    llm.generate(prompts, params)
    return time.perf_counter() - began


def _acceptance(tokens: int) -> dict[str, Any]:
    """Measure the acceptance of the demo model's own drafters, and of n-grams."""
    methods: dict[str, dict[str, Any]] = {
        name: {"method": name, "model": str(DEMO_MODEL / name)} for name in ("draft", "eagle", "medusa")
    }
    params = SamplingParams(temperature=0, max_tokens=80)
    messages = [[{"role": "user", "content": question.text}] for question in QUESTIONS]
    found = {}
    for name, settings in {**methods, "ngram": {"method": "ngram"}}.items():
        speculation = {**settings, "tokens": tokens, "adaptive": False}
        with LLM(DEMO_MODEL, progress=False, num_blocks=1024, speculation=speculation) as llm:
            llm.chat(messages, params)
            found[name] = _acceptance_of(llm.scheduler_statistics().counters)
    return {"questions": len(messages), "drafts": tokens, **found}


def _ngram_cost(sequences: int = 256, length: int = 8000, steps: int = 50) -> dict[str, Any]:
    """One step: a new token of each sequence taken in, and drafts for it. Tokens are of few kinds, so that there are
    many places to look at."""
    chance = np.random.default_rng(0)
    drafter = NgramDrafter(Speculation(method="ngram"))
    for serial in range(sequences):
        drafter.open(serial, int32(chance.integers(0, 500, length)))
    serials, ones = int64(range(sequences)), int32([1] * sequences)
    took = []
    for _ in range(steps):
        new = int32(chance.integers(0, 500, sequences))
        began = time.perf_counter()
        drafter.propose(serials, ones, new, 4 * ones)
        took.append(time.perf_counter() - began)
    return {
        "sequences": sequences,
        "tokens": length,
        "milliseconds": round(1e3 * statistics.median(took), 3),
        "bytes_per_token": round(drafter.num_bytes / (sequences * length), 1),
    }


def _lines(name: str, row: dict[str, Any]) -> list[str]:
    if name == "acceptance":
        return [
            f"{name}: {method}: {found.get('tokens_per_verification', 1.0):.2f} tokens for each verification"
            for method, found in row.items()
            if isinstance(found, dict)
        ]
    if name == "ngram":
        return [f"{name}: {row['milliseconds']:.2f} ms a step, {row['bytes_per_token']:.0f} bytes a token"]
    return [
        f"{name}: {row['with_seconds']:.3f} s with drafts, {row['without_seconds']:.3f} s without: "
        f"{row['speedup']:.2f} times as fast with them; "
        f"{row.get('tokens_per_verification', 1.0):.2f} tokens for each verification"
    ]
