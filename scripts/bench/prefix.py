"""`pageant bench prefix`: what prefix caching gives where prompts begin alike, and what it costs where they do not.

One engine, whose block manager is swapped for one with prefix caching and one without, in turn: two engines that are
alike, each with a process and memory of its own, differ by more than what is looked for here.

    shared     requests that are submitted at once, with a prefix in common: the first computes it, and the others
               find it, in the very same step
    unshared   requests that have nothing in common: every block is hashed and indexed for nothing, and others are
               evicted for it: there are as many blocks as the requests take, and all of them are in use before
"""

from __future__ import annotations

import random
import statistics
import time
from typing import Annotated, Any

import typer

from pageant.actors.client.llm import LLM
from pageant.actors.executor.options import ExecutorOptions
from pageant.protocol.sampling import SamplingParams
from pageant.scripts.bench.models import suit
from pageant.scripts.bench.progress import rounds
from pageant.scripts.bench.workloads import random_ids
from pageant.scripts.engine_options import with_engine_options
from pageant.scripts.report import Json, in_turns, publish

Prompts = list[list[int]]


class Work:
    """Prompts that no engine has had before."""

    def __init__(self, requests: int, prefix: int, own: int) -> None:
        self._requests, self._prefix, self._own = requests, prefix, own
        self._chance = random.Random(0)

    def shared(self) -> Prompts:
        """Return prompts that begin alike."""
        prefix = random_ids(self._chance, self._prefix)
        return [prefix + random_ids(self._chance, self._own) for _ in range(self._requests)]

    def unshared(self, requests: int) -> Prompts:
        """Return prompts that are as long, and have nothing alike."""
        return [random_ids(self._chance, self._prefix + self._own) for _ in range(requests)]


@with_engine_options
def bench(
    engine: dict[str, Any],
    requests: Annotated[int, typer.Option(help="Submitted at once.")] = 64,
    prefix: Annotated[int, typer.Option(help="Tokens that their prompts share.")] = 1024,
    own: Annotated[int, typer.Option(help="Tokens of their own.")] = 32,
    output: Annotated[int, typer.Option(help="Tokens of each answer.")] = 16,
    rounds_: Annotated[
        int, typer.Option("--rounds", help="With a shared prefix; the median of ratios counts.")
    ] = 1,
    pairs: Annotated[int, typer.Option(help="With nothing shared; likewise.")] = 10,
    unshared_requests: Annotated[int, typer.Option(help="Requests of those.")] = 4,
    json: Json = None,
) -> None:
    """Requests with and without a shared prefix, with and without prefix caching, in turn."""
    work = Work(requests, prefix, own)
    length = prefix + own + output
    engine = {"max_model_len": length, **suit(engine, "qwen3-0.6b")}
    params = SamplingParams(temperature=0, max_tokens=output, ignore_eos=True)
    with _Engine(engine, params) as each:
        shared = [
            each.pair(work.shared(), work.unshared(1), turn) for turn in rounds("a shared prefix", rounds_)
        ]
    block_size = engine.get("block_size", ExecutorOptions(model="").block_size)
    num_blocks = unshared_requests * -(-length // block_size)
    with _Engine({"num_blocks": num_blocks, **engine}, params) as each:
        unshared = [
            each.pair(work.unshared(unshared_requests), work.unshared(unshared_requests), turn)
            for turn in rounds("nothing shared", pairs)
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


class _Engine:
    """An engine that caches prefixes or does not, as it is told."""

    def __init__(self, settings: dict[str, Any], params: SamplingParams) -> None:
        self._llm = LLM(progress=False, **{**settings, "enable_prefix_caching": True})
        self._params = params
        self._caching: bool | None = None

    def __enter__(self) -> _Engine:
        return self

    def __exit__(self, *error: object) -> None:
        self._llm.close()

    def pair(self, prompts: Prompts, before: Prompts, turn: int) -> tuple[float, float]:
        """Seconds with prefix caching and without; who is first takes turns.

        Args:
            before: what is computed after a change, so that the blocks have been used and the caches are full.
        """
        took = {}
        for caching in in_turns((True, False), turn):
            if caching != self._caching:
                self._llm.swap("blocks", options={"enable_prefix_caching": caching})
                self._caching = caching
                self._seconds(before)
            took[caching] = self._seconds(prompts)
        return took[True], took[False]

    def _seconds(self, prompts: Prompts) -> float:
        began = time.perf_counter()
        self._llm.generate(prompts, self._params, progress=False)
        return time.perf_counter() - began


def _report(pairs: list[tuple[float, float]]) -> dict[str, Any]:
    return {
        "with_seconds": round(statistics.median(one for one, _ in pairs), 3),
        "without_seconds": round(statistics.median(other for _, other in pairs), 3),
        "without_over_with": round(statistics.median(other / one for one, other in pairs), 4),
        "pairs": [[round(one, 3), round(other, 3)] for one, other in pairs],
    }
