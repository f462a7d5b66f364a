"""`pageant chaos --notice SECONDS`: each replica in turn is told that it will be gone so soon, as spot machines are.

A replica drains for half of the notice and hands over what it still has; when the notice is over, it is gone. Its KV is
in the store of the host: conversations that it held go on elsewhere, and find their prompts cached.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pageant.actors.client.engine import Engine
from pageant.actors.runtime.yaml import merge
from pageant.protocol.sampling import SamplingParams
from pageant.scripts.chaos.load import Asked, losses, mixed_requests, undisturbed, verdict
from pageant.scripts.chaos.replicas import APART, SETTINGS, loaded, of_load
from pageant.scripts.report import publish, table

STORED: dict[str, Any] = {"replicas": 2, "store_memory": "1GiB", "routing": "round_robin"}
PATIENCE_SHARE = 0.5
"""Share of the notice in which requests may end where they are."""
PAUSE_SECONDS_MAX = 0.5
"""The longest pause of 99 of 100 streams."""
FOUND_MIN = 0.8
"""The share of the conversations' prompt tokens that is found cached where they go on."""
CONVERSATIONS, PROMPT_TOKENS = 16, 512
HEADINGS = ("what left", "drained after, s", "p99 pause, s", "longest pause, s", "prompt tokens found")


def notices(
    engine: dict[str, Any], *, notice: float, requests: int, tokens: int, seed: int, path: Path | None
) -> int:
    """Print what became of the requests. Return how many bars were missed.

    Args:
        engine: arguments of the engine, over `SETTINGS` and `STORED`.
        notice: seconds from the word to the end.
        requests: that stream at a time.
        tokens: output tokens of each request, about.
        path: where the figures go as JSON.
    """
    given = merge(SETTINGS | STORED, {key: value for key, value in engine.items() if value is not None})
    figures = asyncio.run(run(given, notice=notice, requests=requests, tokens=tokens, seed=seed))
    rows = [(name, *row.values()) for name, row in figures["left"].items()]
    missed = bars_missed(figures)
    publish(figures, [*table(HEADINGS, rows), *verdict(figures), *(missed or ["every bar holds"])], path)
    return len(missed)


def bars_missed(figures: Mapping[str, Any]) -> list[str]:
    """Return what a run did not hold of what it should."""
    bars: dict[str, bool] = {}
    for name, row in figures["left"].items():
        took, pause, found = row["drained_seconds"], row["pause_seconds_p99"], row["found_share"]
        bars[f"{name} was drained after {took:g} s, not {figures['notice']:g}"] = took > figures["notice"]
        bars[f"{name}: p99 of pauses is {pause:g} s, not {PAUSE_SECONDS_MAX:g}"] = pause > PAUSE_SECONDS_MAX
        bars[f"{name}: {found:.0%} of prompt tokens were found, not {FOUND_MIN:.0%}"] = found < FOUND_MIN
    return [*losses(figures), *(text for text, is_missed in bars.items() if is_missed)]


async def run(
    settings: dict[str, Any], *, notice: float, requests: int, tokens: int, seed: int
) -> dict[str, Any]:
    """Return the figures of one run: each replica leaves, and comes again."""
    asked, talks = mixed_requests(requests, tokens), _conversations(seed)
    left: dict[str, dict[str, float]] = {}
    async with Engine(**merge(APART, settings)) as engine:
        load = await loaded(engine, asked)
        for name in [one.name for one in await engine.replicas.ls()]:
            await undisturbed(engine, talks)  # either replica holds some of them
            began = time.monotonic()
            await engine.replicas.drain(name, PATIENCE_SHARE * notice)
            took = time.monotonic() - began
            await load.all_have_moved(time.monotonic())
            pauses = load.pauses(began)
            left[name] = {
                "drained_seconds": round(took, 2),
                "pause_seconds_p99": round(float(np.percentile(pauses, 99)), 2),
                "pause_seconds_max": round(max(pauses), 2),
                "found_share": round(await _found(engine, talks), 3),
            }
            await engine.replicas.add(name)
        await load.end()
    return of_load(settings, load, requests) | {"notice": notice, "left": left}


def _conversations(seed: int) -> list[Asked]:
    """Make prompts that have nothing in common."""
    rng, params = random.Random(seed), SamplingParams(temperature=0, max_tokens=1)
    prompts = [[rng.randrange(10, 200) for _ in range(PROMPT_TOKENS)] for _ in range(CONVERSATIONS)]
    return [Asked(prompt, params) for prompt in prompts]


async def _found(engine: Engine, talks: list[Asked]) -> float:
    """Return the share of prompt tokens that are found cached when conversations go on."""
    outputs = await undisturbed(engine, talks)
    return sum(one.num_cached_tokens for one in outputs) / (CONVERSATIONS * PROMPT_TOKENS)
