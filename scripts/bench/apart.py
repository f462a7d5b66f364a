"""`pageant bench apart`: what streams notice of long prompts, where replicas compute prompts and outputs apart.

Each round runs the same work on one engine with all cores, on two replicas that compute both, and on one for prompts
and one for outputs, with half of the cores each. Streams decode, long prompts come one after another, and then short
prompts come one after another. All layouts are loaded together and take turns.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from contextlib import AsyncExitStack
from typing import Annotated, Any

import numpy as np
import typer

from pageant.actors.client.engine import Engine
from pageant.protocol.errors import BadRequest
from pageant.protocol.sampling import SamplingParams
from pageant.scripts.bench.latency import decoding, until
from pageant.scripts.bench.models import suit
from pageant.scripts.bench.progress import rounds
from pageant.scripts.bench.workloads import random_ids
from pageant.scripts.engine_options import with_engine_options
from pageant.scripts.report import Json, in_turns, publish, table

ALONE, TWO, APART = "one engine", "two replicas", "prompts apart"
SHORT_PROMPTS, SHORT_TOKENS, LONG_OUTPUT = 8, 64, 16
BARS = "The bars, apart over one engine: at most 0.50 between tokens, at most 1.10 to the first token."

Row = dict[str, float]


@with_engine_options
def bench(
    engine: dict[str, Any],
    cores: Annotated[int, typer.Option(help="Threads that each layout has in sum, an even number.")] = 2,
    streams: Annotated[int, typer.Option(help="That decode meanwhile.")] = 8,
    prompts: Annotated[int, typer.Option(help="Long prompts of each round.")] = 4,
    prompt: Annotated[int, typer.Option(help="Tokens of each.")] = 2048,
    rounds_: Annotated[int, typer.Option("--rounds", help="The median of ratios counts.")] = 5,
    store: Annotated[str, typer.Option(help="Memory for blocks that are handed over.")] = "256MiB",
    json: Json = None,
) -> None:
    """Streams beside prompts: time between tokens, first tokens and speed, with prompts computed apart and not."""
    if min(cores, streams, prompts, prompt) < 1 or cores % 2:
        raise BadRequest("expected an even number of cores, and at least one stream and prompt", "streams")
    engine = {"enable_prefix_caching": True, **suit(engine, "small-long")}
    half = {"threads": cores // 2}
    layouts: dict[str, dict[str, Any]] = {
        ALONE: {"threads": cores},
        TWO: {**half, "replicas": 2},
        APART: {
            **half,
            "replicas": {"prefill": {"count": 1}, "decode": {"count": 1}},
            "actors": {"store": {"options": {"memory": store}}},
        },
    }
    layouts = {name: {**engine, **layout} for name, layout in layouts.items()}
    found = asyncio.run(_rounds(layouts, streams, prompts, prompt, rounds_))
    figures = _figures(found) | {
        "streams": streams,
        "prompts": prompts,
        "prompt_tokens": prompt,
        "threads": cores,
    }
    rows = [
        (name, *(f"{value:g} ({each['ratio'][figure]:g})" for figure, value in each["median"].items()))
        for name, each in figures["layouts"].items()
    ]
    columns = ("layout (of one engine)", *(name.replace("_", " ") for name in found[ALONE][0]))
    publish(figures, [*table(columns, rows), BARS], json)


async def _rounds(
    layouts: dict[str, dict[str, Any]], streams: int, prompts: int, prompt: int, count: int
) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {name: [] for name in layouts}
    chance = random.Random(0)
    async with AsyncExitStack() as stack:
        engines = {
            name: await stack.enter_async_context(Engine(**settings)) for name, settings in layouts.items()
        }
        for turn in rounds("prompts beside streams", count + 1):
            for name in in_turns([*layouts], turn):
                row = await _measure(engines[name], chance, streams, prompts, prompt)
                if turn:  # the first round warms up
                    found[name].append(row)
    return found


async def _measure(engine: Engine, chance: random.Random, streams: int, prompts: int, prompt: int) -> Row:
    async with decoding(engine, chance, streams) as all_streams:
        began, before = time.perf_counter(), sum(len(one.times) for one in all_streams)
        for _ in range(prompts):
            await engine.complete(random_ids(chance, prompt), _output(LONG_OUTPUT))
        ended, after = time.perf_counter(), sum(len(one.times) for one in all_streams)
        await until(all_streams, max(len(one.times) for one in all_streams) + 1)
        gaps = [gap for one in all_streams for gap in one.gaps(began, ended)]
        firsts = [await _first_token(engine, chance) for _ in range(SHORT_PROMPTS)]
    return {
        "between_tokens_median_ms": round(1e3 * statistics.median(gaps), 2),
        "between_tokens_p99_ms": round(1e3 * float(np.percentile(gaps, 99)), 2),
        "short_first_token_ms": round(1e3 * statistics.median(firsts), 2),
        "stream_tokens_per_s": round((after - before) / (ended - began), 1),
        "prompt_tokens_per_s": round(prompts * prompt / (ended - began), 1),
    }


async def _first_token(engine: Engine, chance: random.Random) -> float:
    began = time.perf_counter()
    await engine.complete(random_ids(chance, SHORT_TOKENS), _output(1))
    return time.perf_counter() - began


def _output(tokens: int) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)


def _figures(found: dict[str, list[Row]]) -> dict[str, Any]:
    """Return medians by layout, and of the ratios to what one engine did in the same round."""

    def ratio(rows: list[Row], name: str) -> float:
        each = [row[name] / alone[name] for row, alone in zip(rows, found[ALONE], strict=True)]
        return round(statistics.median(each), 3)

    names = [*found[ALONE][0]]
    return {
        "layouts": {
            layout: {
                "median": {name: round(statistics.median(row[name] for row in rows), 2) for name in names},
                "ratio": {name: ratio(rows, name) for name in names},
            }
            for layout, rows in found.items()
        },
        "rounds": found,
    }
