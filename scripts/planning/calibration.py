"""Calibration: a short run of a model on this machine, recorded, from which the times of its steps are fitted."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pageant
from pageant.actors.runtime.loop import new_event_loop
from pageant.scripts.replay.load import Load, read_load

TOGETHER = (1, 2, 4, 8, 16, 1, 32)
"""Requests that are open at a time, in the rounds of the run."""
PROMPT_TOKENS = (16, 1024)
"""The least and the most tokens of a prompt, as far as the model takes so many."""
OUTPUT_TOKENS = 24
TOKEN_IDS = (10, 250)
"""First and last token id of the prompts, which every vocabulary has."""


def calibrate(path: Path, settings: Mapping[str, Any]) -> Load:
    """Run a model, and return the recording of it, written to a new file.

    Replicas run at once, with as many requests each, so that what they take from one another is in the times. The
    recording is then that of the first.

    Args:
        settings: of the engine, with its `model`.
    """
    replicas = int(settings.get("replicas") or 1)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(_run(path, dict(settings), replicas))
    return read_load(path, "replica-0/" if replicas > 1 else None)


async def _run(path: Path, settings: dict[str, Any], replicas: int) -> None:
    model = settings.pop("model", None)
    chance = random.Random(0)
    async with pageant.Engine(model, **settings) as engine:
        longest = min(PROMPT_TOKENS[1], engine.max_model_len - OUTPUT_TOKENS)
        await _round(
            engine, chance, 2 * replicas, longest
        )  # what is compiled or loaded on first use does not count
        async with engine.record(path):
            for together in TOGETHER:
                await _round(engine, chance, together * replicas, longest)


async def _round(engine: pageant.Engine, chance: random.Random, together: int, longest: int) -> None:
    """Serve so many requests at a time, of different prompts."""
    # A stop string keeps plans to one step each, as those of streams are.
    params = pageant.SamplingParams(temperature=0, max_tokens=OUTPUT_TOKENS, ignore_eos=True, stop=("\0",))
    low = min(PROMPT_TOKENS[0], longest)
    prompts = [
        [chance.randint(*TOKEN_IDS) for _ in range(round(low * (longest / low) ** chance.random()))]
        for _ in range(together)
    ]
    await asyncio.gather(*(engine.complete(prompt, params) for prompt in prompts))
