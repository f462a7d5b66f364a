"""`pageant bench store`: how fast blocks are copied, how much sooner a stored prefix is there, and what a store costs.

    copies       save and restore blocks as an executor does, checksums and headers included, beside `memcpy` of the
                 same bytes; the shape is that of a block of Qwen 3 0.6B
    fetches      blocks of another store are fetched by TCP on loopback and checked, in the clear and encrypted; see
                 `store_hosts`
    first token  a prompt is computed by one of two replicas, and its prefix then restored by the other
    no reuse     prompts that have nothing in common, on an engine with a store and on one without: all blocks are saved
                 for nothing

What is compared takes turns, and ratios are taken round by round.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any

import typer

from pageant.actors.client.engine import Engine
from pageant.protocol.sampling import SamplingParams
from pageant.protocol.storing import GetStoreStatistics
from pageant.scripts.bench.models import suit
from pageant.scripts.bench.progress import rounds
from pageant.scripts.bench.store_hosts import measure_fetches
from pageant.scripts.bench.workloads import random_ids
from pageant.scripts.copies import Copies
from pageant.scripts.engine_options import with_engine_options
from pageant.scripts.report import Json, in_turns, publish

LAYERS, HEADS, HEAD_BYTES = 28, 8, 16 * 128 * 2
"""Qwen 3 0.6B: its layers, and the bytes of a head's keys in a block of 16 tokens in bfloat16."""
BATCH = 8
"""Prompts at once where nothing is reused."""
POLL_SECONDS = 0.005
ONE = SamplingParams(temperature=0, max_tokens=1)


@with_engine_options
def bench(
    engine: dict[str, Any],
    blocks: Annotated[int, typer.Option(min=1, help="Blocks that are copied at once.")] = 64,
    prompt: Annotated[int, typer.Option(min=32, help="Tokens of a prompt.")] = 2048,
    output: Annotated[int, typer.Option(min=1, help="Tokens of each output where nothing is reused.")] = 32,
    rounds_: Annotated[int, typer.Option("--rounds", min=1, help="Of each measurement.")] = 5,
    store: Annotated[str, typer.Option(help="Memory of the store.")] = "2GiB",
    json: Json = None,
) -> None:
    """Speed of a KV store's copies and fetches, first tokens with a stored prefix, and the price without reuse."""
    copies = measure_copies(blocks, rounds_)
    fetches = asyncio.run(measure_fetches(blocks, rounds_, 2 * LAYERS * HEADS, HEAD_BYTES))
    settings = {"max_model_len": prompt + output, **suit(engine, "small-long")}
    first = asyncio.run(_first_tokens(settings, store, prompt, rounds_))
    price = asyncio.run(_no_reuse(settings, store, prompt // BATCH, output, rounds_))
    given = {name: value for name, value in settings.items() if name != "model"}
    figures = {
        "settings": given,
        "copies": copies,
        "fetches": fetches,
        "first_token": first,
        "no_reuse": price,
    }
    publish(figures, _lines(figures), json)


def _lines(figures: dict[str, Any]) -> list[str]:
    copies, first, price = figures["copies"], figures["first_token"], figures["no_reuse"]
    fetches = figures["fetches"]
    return [
        f"{way:>11}: {copies[way]['gb_per_second']:.2f} GB/s, {copies[way]['of_memcpy']:.2f} of memcpy"
        for way in ("save", "restore")
    ] + [
        f"      fetch: {fetches['plain']['gb_per_second']:.2f} GB/s in the clear, "
        f"{fetches['encrypted']['gb_per_second']:.2f} GB/s encrypted",
        f"first token: {first['restored_seconds']:.3f} s with {first['restored_tokens']} of {first['prompt']} tokens "
        f"restored, {first['computed_seconds']:.3f} s computed: {first['times_sooner']:.2f} times as soon",
        f"   no reuse: {price['of_none']:.3f} of the speed without a store",
    ]


# Copies.


def measure_copies(
    blocks: int, count: int, layers: int = LAYERS, heads: int = HEADS, head_bytes: int = HEAD_BYTES
) -> dict[str, Any]:
    """Return the speed of saving and of restoring blocks of a shape, and as shares of `memcpy`'s in the same round.

    A share counts the same bytes once: what is copied, not what is read and written.
    """
    copies = Copies(blocks, layers, heads, head_bytes)
    ways: list[tuple[str, Callable[[], None]]] = [
        ("save", lambda: copies.move("save")),
        ("restore", lambda: copies.move("restore")),
        ("memcpy", copies.memcpy),
    ]
    for _, run in ways:
        run()  # warm up
    took: dict[str, list[float]] = {way: [] for way, _ in ways}
    for number in rounds("copies", count):
        for way, run in in_turns(ways, number):
            began = time.perf_counter()
            run()
            took[way].append(time.perf_counter() - began)
    return {
        "blocks": blocks,
        "bytes": copies.num_bytes,
        **{way: _speed(copies.num_bytes, seconds, took["memcpy"]) for way, seconds in took.items()},
    }


def _speed(num_bytes: int, took: Sequence[float], memcpy: Sequence[float]) -> dict[str, float]:
    return {
        "gb_per_second": round(num_bytes / statistics.median(took) / 1e9, 3),
        "of_memcpy": _ratio(memcpy, took),
    }


def _ratio(ones: Sequence[float], others: Sequence[float]) -> float:
    """Return the median of ratios, round by round."""
    return round(statistics.median(one / other for one, other in zip(ones, others, strict=True)), 3)


# First tokens.


async def _first_tokens(settings: dict[str, Any], store: str, prompt: int, count: int) -> dict[str, Any]:
    """Have one replica compute a prompt, and the other restore it; in each round another prompt."""
    chance = random.Random(0)
    actors = {"router": {"options": {"routing": "round_robin"}}}
    computed, restored, tokens = [], [], []
    async with Engine(
        **_with_room(settings, prompt), store_memory=store, replicas=2, actors=actors
    ) as engine:
        for _ in range(2):  # each replica warms up
            await engine.complete(random_ids(chance, prompt), ONE)
        for _ in rounds("first tokens", count):
            asked = random_ids(chance, prompt)
            seconds, _ = await _first_token(engine, asked)
            computed.append(seconds)
            await _saved(engine)
            seconds, cached = await _first_token(engine, asked)
            restored.append(seconds)
            tokens.append(cached)
    return {
        "prompt": prompt,
        "computed_seconds": round(statistics.median(computed), 4),
        "restored_seconds": round(statistics.median(restored), 4),
        "restored_tokens": min(tokens),
        "times_sooner": _ratio(computed, restored),
    }


def _with_room(settings: dict[str, Any], tokens: int) -> dict[str, Any]:
    """Return settings with blocks for some such prompts, unless the user says how many."""
    if {"num_blocks", "kv_cache_memory"} & settings.keys():
        return settings
    return {**settings, "num_blocks": 4 * -(-tokens // 16) + BATCH * 8}


async def _first_token(engine: Engine, asked: list[int]) -> tuple[float, int]:
    """Return the seconds until a prompt's first token, and how many tokens were not computed."""
    began = time.perf_counter()
    found = await engine.complete(asked, ONE)
    return time.perf_counter() - began, found.num_cached_tokens


async def _saved(engine: Engine) -> None:
    """Return when the store has been given nothing more for a while."""
    before = -1
    while True:
        found = await engine.ask("store", GetStoreStatistics())
        if found.saved == before and not found.reserved:
            return
        before = found.saved
        await asyncio.sleep(POLL_SECONDS * 20)


# Without reuse.


async def _filled(engine: Engine, run: Callable[[Engine], Awaitable[float]]) -> None:
    """Return when the store is full, as a server's is: no page of it is touched for the first time from then on."""
    before = -1
    while (stored := (await engine.ask("store", GetStoreStatistics())).blocks) > before:
        before = stored
        await run(engine)


async def _no_reuse(
    settings: dict[str, Any], store: str, prompt: int, output: int, count: int
) -> dict[str, Any]:
    """Run prompts with nothing in common on an engine with a store and on one without."""
    chance = random.Random(1)
    params = SamplingParams(temperature=0, max_tokens=output, ignore_eos=True)
    settings = _with_room(settings, BATCH * (prompt + output))
    took: dict[bool, list[float]] = {False: [], True: []}
    async with Engine(**settings) as without, Engine(**settings, store_memory=store) as with_store:
        engines = ((False, without), (True, with_store))

        async def run(engine: Engine) -> float:
            asked = [random_ids(chance, prompt) for _ in range(BATCH)]
            began = time.perf_counter()
            await asyncio.gather(*(engine.complete(one, params) for one in asked))
            return time.perf_counter() - began

        for _, engine in engines:
            await run(engine)  # warm up
        await _filled(with_store, run)
        for number in rounds("no reuse", count):
            for has_store, engine in in_turns(engines, number):
                took[has_store].append(await run(engine))
    return {
        "requests": BATCH,
        "prompt": prompt,
        "output": output,
        "with_seconds": round(statistics.median(took[True]), 4),
        "without_seconds": round(statistics.median(took[False]), 4),
        "of_none": _ratio(took[False], took[True]),
    }
