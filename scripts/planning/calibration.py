"""Calibration: a short run of a model on this machine, recorded, from which the times of its steps are fitted."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

import pageant
from pageant.actors.runtime.loop import new_event_loop
from pageant.actors.runtime.recorder import KINDS
from pageant.actors.runtime.recording import RecordingReader
from pageant.protocol.errors import BadRequest
from pageant.protocol.storing import Reserve
from pageant.scripts.copies import Copies, Way
from pageant.scripts.replay.load import Load, read_load

TOGETHER = (1, 4, 16, 2, 8, 32, 1, 3, 12, 24, 2, 6, 1)
"""Requests that are open at a time, in the rounds of the run. Sizes alternate: what disturbs the machine for a while
strikes all of them.
"""
STAGGERED = 24
"""Requests that come each when the one before has its first token, so that prompts are computed beside outputs."""
PROMPT_TOKENS = (16, 1024)
"""The least and the most tokens of a prompt, as far as the model takes so many."""
OUTPUT_TOKENS = 32
CALIBRATED_STORE = "64MiB"
WAYS: tuple[Way, ...] = ("save", "restore")
COPIED_BLOCKS, COPIES, LAYERS, HEADS = 64, 8, 4, 2
"""Blocks of a copy whose time is taken, how often each way, and the parts of a block."""
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


def calibrate_copies(path: Path, settings: Mapping[str, Any]) -> float:
    """Return the seconds that the block of a token takes to be copied to a store or from it, in the median.

    An engine with a store says how large a slot is. Copies of slots of that size are then timed here.

    Args:
        path: a new file for a recording of what is reserved.
        settings: of the engine, with its `model`; the number of replicas there is of no account.
    """
    own = {name: value for name, value in settings.items() if name != "replicas"}
    own.setdefault("store_memory", CALIBRATED_STORE)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(_run_stored(path, own))
    with RecordingReader(path) as reader:
        block_size = reader.header.block_size
        found = [reader.decode(message) for message in reader.messages() if message.kind == "Reserve"]
    sizes = [one.slot_bytes for one in found if isinstance(one, Reserve)]
    if not sizes or not block_size:
        raise BadRequest("no block was saved while copies were measured; expected --copy-rate", "copy_rate")
    copies = Copies(COPIED_BLOCKS, LAYERS, HEADS, max(8, sizes[0] // (2 * LAYERS * HEADS) // 8 * 8))
    took: list[float] = []
    for _ in range(COPIES):
        for way in WAYS:
            began = time.perf_counter()
            copies.move(way)
            took.append(time.perf_counter() - began)
    return median(took[len(WAYS) :]) / COPIED_BLOCKS / block_size


async def _run_stored(path: Path, settings: dict[str, Any]) -> None:
    model = settings.pop("model", None)
    async with pageant.Engine(model, **settings) as engine:
        longest = min(PROMPT_TOKENS[1], engine.max_model_len - OUTPUT_TOKENS)
        async with engine.record(path, kinds=(*KINDS, "Reserve")):
            await _round(engine, random.Random(1), 4, longest)


async def _run(path: Path, settings: dict[str, Any], replicas: int) -> None:
    model = settings.pop("model", None)
    chance = random.Random(0)
    async with pageant.Engine(model, **settings) as engine:
        longest = min(PROMPT_TOKENS[1], engine.max_model_len - OUTPUT_TOKENS)
        for together in (1, 16):  # what is compiled, or allocated on first use, does not count
            await _round(engine, chance, together * replicas, longest)
        async with engine.record(path):
            for together in TOGETHER:
                await _round(engine, chance, together * replicas, longest)
            await _stagger(engine, chance, STAGGERED * replicas, longest, replicas)


async def _round(engine: pageant.Engine, chance: random.Random, together: int, longest: int) -> None:
    """Serve so many requests at a time, of different prompts."""
    prompts = [_prompt(chance, longest) for _ in range(together)]
    await asyncio.gather(*(engine.complete(prompt, _params()) for prompt in prompts))


async def _stagger(
    engine: pageant.Engine, chance: random.Random, count: int, longest: int, streams: int
) -> None:
    """Serve so many requests, of which `streams` at a time have no token yet."""
    asked: list[asyncio.Task[None]] = []
    waiting = asyncio.Semaphore(streams)
    for _ in range(count):
        await waiting.acquire()
        asked.append(asyncio.create_task(_stream(engine, _prompt(chance, longest), waiting)))
    await asyncio.gather(*asked)


async def _stream(engine: pageant.Engine, prompt: list[int], waiting: asyncio.Semaphore) -> None:
    has_begun = False
    async for _ in engine.generate(prompt, _params()):
        if not has_begun:
            has_begun = True
            waiting.release()


def _prompt(chance: random.Random, longest: int) -> list[int]:
    low = min(PROMPT_TOKENS[0], longest)
    return [chance.randint(*TOKEN_IDS) for _ in range(round(low * (longest / low) ** chance.random()))]


def _params() -> pageant.SamplingParams:
    # A stop string keeps plans to one step each, as those of streams are.
    return pageant.SamplingParams(temperature=0, max_tokens=OUTPUT_TOKENS, ignore_eos=True, stop=("\0",))
