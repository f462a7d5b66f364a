"""`pageant bench prefix`: what prefix caching gives where prompts begin alike, and what it costs where they do not.

Two engines, one with prefix caching and one without, in turn:

    shared     requests that are submitted at once, with a prefix in common: the first computes it, and the others
               find it, in the very same step
    unshared   requests that have nothing in common: every block is hashed and indexed for nothing. There are as many
               blocks as they take, and all have been used once, as in a server that has been up for a while: the first
               use of a block also takes memory from the system, earlier where freed blocks are kept
"""

from __future__ import annotations

import contextlib
import random
import statistics
import time
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from pageant.actors.executor.options import ExecutorOptions
from pageant.actors.frontend.llm import LLM
from pageant.protocol.sampling import SamplingParams
from pageant.scripts.bench.report import Json, publish
from pageant.scripts.bench.workloads import random_ids
from pageant.scripts.engine_options import with_engine_options

Prompts = list[list[int]]


class Work:
    """Prompts that no engine has had before."""

    def __init__(self, requests: int, prefix: int, own: int) -> None:
        self._requests, self._prefix, self._own = requests, prefix, own
        self._chance = random.Random(0)

    def shared(self) -> Prompts:
        """They begin alike."""
        prefix = random_ids(self._chance, self._prefix)
        return [prefix + random_ids(self._chance, self._own) for _ in range(self._requests)]

    def unshared(self, requests: int) -> Prompts:
        """As long, but nothing alike."""
        return [random_ids(self._chance, self._prefix + self._own) for _ in range(requests)]


@with_engine_options
def bench(
    engine: dict[str, Any],
    requests: Annotated[int, typer.Option(help="Submitted at once.")] = 64,
    prefix: Annotated[int, typer.Option(help="Tokens that their prompts share.")] = 1024,
    own: Annotated[int, typer.Option(help="Tokens of their own.")] = 32,
    output: Annotated[int, typer.Option(help="Tokens of each answer.")] = 16,
    rounds: Annotated[int, typer.Option(help="With a shared prefix; the median of ratios counts.")] = 1,
    pairs: Annotated[int, typer.Option(help="With nothing shared; likewise.")] = 10,
    unshared_requests: Annotated[int, typer.Option(help="Requests of those.")] = 8,
    json: Json = None,
) -> None:
    """Requests with and without a shared prefix, with and without prefix caching, in turn."""
    work = Work(requests, prefix, own)
    length = prefix + own + output
    engine = {"max_model_len": length, **engine}
    params = SamplingParams(temperature=0, max_tokens=output, ignore_eos=True)
    with _engines(engine) as (with_cache, without):
        for each in (with_cache, without):
            each.generate(work.unshared(2), params, progress=False)
        shared = [_pair(with_cache, without, work.shared(), params, turn) for turn in range(rounds)]
    block_size = engine.get("block_size", ExecutorOptions(model="").block_size)
    num_blocks = unshared_requests * -(-length // block_size)
    with _engines({"num_blocks": num_blocks, **engine}) as (with_cache, without):
        for each in (with_cache, without):
            each.generate(work.unshared(unshared_requests), params, progress=False)
        unshared = [
            _pair(with_cache, without, work.unshared(unshared_requests), params, turn)
            for turn in range(pairs)
        ]
    figures: dict[str, Any] = {
        "shared": {"requests": requests, "prefix": prefix, "own": own, "output": output, **_report(shared)},
        "unshared": {
            "requests": unshared_requests,
            "prompt": prefix + own,
            "output": output,
            **_report(unshared),
        },
    }
    lines = [
        f"{name:>8}: {row['with_seconds']:.3f} s with prefix caching, {row['without_seconds']:.3f} s without: "
        f"{row['without_over_with']:.3f} times as fast with it"
        for name, row in figures.items()
    ]
    publish(figures, lines, json)


@contextlib.contextmanager
def _engines(engine: dict[str, Any]) -> Iterator[tuple[LLM, LLM]]:
    """One with prefix caching and one without."""
    with (
        LLM(progress=False, **{**engine, "enable_prefix_caching": True}) as with_cache,
        LLM(progress=False, **{**engine, "enable_prefix_caching": False}) as without,
    ):
        yield with_cache, without


def _pair(
    with_cache: LLM, without: LLM, prompts: Prompts, params: SamplingParams, turn: int
) -> tuple[float, float]:
    """Seconds with prefix caching and without; who is first takes turns."""
    order = (with_cache, without) if turn % 2 == 0 else (without, with_cache)
    took = {each: _seconds(each, prompts, params) for each in order}
    return took[with_cache], took[without]


def _seconds(llm: LLM, prompts: Prompts, params: SamplingParams) -> float:
    began = time.perf_counter()
    llm.generate(prompts, params, progress=False)
    return time.perf_counter() - began


def _report(pairs: list[tuple[float, float]]) -> dict[str, Any]:
    return {
        "with_seconds": round(statistics.median(one for one, _ in pairs), 3),
        "without_seconds": round(statistics.median(other for _, other in pairs), 3),
        "without_over_with": round(statistics.median(other / one for one, other in pairs), 4),
        "pairs": [[round(one, 3), round(other, 3)] for one, other in pairs],
    }
