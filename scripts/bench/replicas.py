"""`pageant bench replicas`: the price of replicas and of a router, in pairs on the same cores.

Each round runs the same prompts on one engine with all cores, on one replica behind a router, and on two replicas
with half of the cores each. All are loaded together and take turns.
"""

from __future__ import annotations

import random
import statistics
import time
from contextlib import ExitStack
from typing import Annotated, Any

import typer

from pageant.actors.client.llm import LLM
from pageant.protocol.sampling import SamplingParams
from pageant.scripts.bench.models import suit
from pageant.scripts.bench.progress import rounds
from pageant.scripts.bench.workloads import random_ids
from pageant.scripts.engine_options import with_engine_options
from pageant.scripts.report import Json, in_turns, publish, table

ALONE, ROUTED, TWO = "one engine", "one replica with a router", "two replicas"
LONGEST_PROMPT = 512
FIRST_TOKENS = 8
"""Requests for one token, one after another, of each layout and round."""
BAR_TWO, BAR_ROUTED = 0.90, 0.99


@with_engine_options
def bench(
    engine: dict[str, Any],
    cores: Annotated[int, typer.Option(help="Threads that each layout has in sum, an even number.")] = 2,
    requests: Annotated[int, typer.Option(help="Requests that are submitted at once.")] = 16,
    output: Annotated[int, typer.Option(help="Tokens of each answer.")] = 32,
    pairs: Annotated[int, typer.Option(help="Rounds; the median of ratios counts.")] = 20,
    json: Json = None,
) -> None:
    """Measure two replicas, and one with a router, beside one engine with as many threads."""
    engine = suit(engine, "small-long")
    layouts: dict[str, dict[str, Any]] = {
        ALONE: {"threads": cores},
        ROUTED: {"threads": cores, "replicas": 1, "actors": {"router": {}}},
        TWO: {"threads": cores // 2, "replicas": 2},
    }
    chance = random.Random(0)
    batches: dict[str, list[float]] = {name: [] for name in layouts}
    firsts: dict[str, list[float]] = {name: [] for name in layouts}
    with ExitStack() as stack:
        llms = {
            name: stack.enter_context(LLM(progress=False, **{**engine, **layout}))
            for name, layout in layouts.items()
        }
        for llm in llms.values():  # whose first requests take longer
            _batch(llm, _prompts(chance, requests), output)
        for turn in rounds("replicas and a router", pairs):
            prompts = _prompts(chance, requests)
            for name in in_turns([*layouts], turn):
                batches[name].append(_batch(llms[name], prompts, output))
                firsts[name].append(_first_token(llms[name], chance))
    figures = _figures(batches, firsts) | {"requests": requests, "output": output, "threads": cores}
    rows = [(name, *row.values()) for name, row in figures["layouts"].items()]
    bars = f"The bars of the speed: {BAR_TWO:g} with two replicas, {BAR_ROUTED:g} with a router."
    publish(figures, [*table(("layout", "batch, s", "speed", "first token, ms"), rows), bars], json)


def _prompts(chance: random.Random, requests: int) -> list[list[int]]:
    return [random_ids(chance, chance.randint(LONGEST_PROMPT // 4, LONGEST_PROMPT)) for _ in range(requests)]


def _batch(llm: LLM, prompts: list[list[int]], output: int) -> float:
    """Return the seconds in which prompts that are submitted at once are answered."""
    params = SamplingParams(temperature=0, max_tokens=output, ignore_eos=True)
    began = time.perf_counter()
    llm.generate(prompts, params, progress=False)
    return time.perf_counter() - began


def _first_token(llm: LLM, chance: random.Random) -> float:
    """Return the median seconds of a request for one token."""
    params, seconds = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True), []
    for _ in range(FIRST_TOKENS):
        prompt = random_ids(chance, 16)
        began = time.perf_counter()
        llm.generate([prompt], params, progress=False)
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)


def _figures(batches: dict[str, list[float]], firsts: dict[str, list[float]]) -> dict[str, Any]:
    """Return medians by layout. The speed is that of the pairs with one engine, round by round."""
    return {
        "layouts": {
            name: {
                "batch_seconds": round(statistics.median(seconds), 3),
                "speed": round(
                    statistics.median(
                        alone / own for alone, own in zip(batches[ALONE], seconds, strict=True)
                    ),
                    3,
                ),
                "first_token_ms": round(1000 * statistics.median(firsts[name]), 2),
            }
            for name, seconds in batches.items()
        },
        "rounds": {name: [round(one, 3) for one in seconds] for name, seconds in batches.items()},
    }
