"""`pageant bench router`: figures of the router's core, without a model.

Decisions are timed one by one, and in batches as frontends ask. Each prompt shares half of its tokens with earlier
ones. A restarted router then takes in what all block managers have, from the bytes that they send.
"""

from __future__ import annotations

import statistics
import time
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import typer

from pageant.actors.router.core import RouterCore
from pageant.actors.router.policies import make_policy
from pageant.protocol.arrays import int32, int64
from pageant.protocol.block_names import block_names, full_blocks, root_name
from pageant.protocol.codec import Codec
from pageant.protocol.following import BlockEvents, StoredBlock
from pageant.protocol.routing import Load, Route
from pageant.scripts.report import Json, publish, table

BLOCK_SIZE = 16
VOCABULARY = 151_936
FAMILIES = 64
"""Prefixes that prompts share."""
BATCH = 32
SNAPSHOT_BLOCKS = 4096
"""Blocks of one message while a snapshot is sent."""
BARS = {"decision_microseconds": 200.0, "decisions_per_second": 5000.0, "warm_seconds": 2.0}

Tokens = npt.NDArray[np.int32]


def bench(
    replicas: Annotated[int, typer.Option(help="Replicas that are chosen among.")] = 16,
    tokens: Annotated[int, typer.Option(help="Tokens of each prompt.")] = 2048,
    decisions: Annotated[
        int, typer.Option(help="Decisions that are measured, one by one and in batches.")
    ] = 4000,
    warm_replicas: Annotated[int, typer.Option(help="Replicas of which a restarted router learns.")] = 64,
    warm_blocks: Annotated[int, typer.Option(help="Blocks that each of them has cached.")] = 10_000,
    json: Json = None,
) -> None:
    """Measure decisions of the router, and how soon it knows all blocks after a restart."""
    figures = {
        "replicas": replicas,
        "prompt_tokens": tokens,
        "decisions": decisions,
        **measure_decisions(replicas, tokens, decisions),
        "warm_replicas": warm_replicas,
        "warm_blocks": warm_blocks,
        "warm_seconds": round(measure_warming(warm_replicas, warm_blocks), 3),
    }
    rows = [
        (f"one decision, {replicas} replicas, {tokens} tokens, µs", figures["decision_microseconds"]),
        ("the slowest of a hundred, µs", figures["decision_microseconds_p99"]),
        (f"decisions per second, {BATCH} at once", figures["decisions_per_second"]),
        ("expected hits, share of tokens", figures["hit_share"]),
        (f"warm with {warm_replicas} x {warm_blocks} blocks, s", figures["warm_seconds"]),
    ]
    bars = "The bars: " + ", ".join(f"{name} {bar:g}" for name, bar in BARS.items())
    publish(figures, [*table(("what", "figure"), rows), bars], json)


def measure_decisions(replicas: int, tokens: int, count: int) -> dict[str, Any]:
    """Return the figures of decisions one by one and in batches."""
    random = np.random.default_rng(0)
    prefixes = random.integers(0, VOCABULARY, (FAMILIES, tokens // 2), np.int32)
    core, seconds = make_core(replicas), []
    for number, asked in enumerate(make_routes(random, prefixes, tokens, count, 1)):
        began = time.perf_counter()
        core.route(asked, number / 1000)
        seconds.append(time.perf_counter() - began)
    microseconds = sorted(1e6 * one for one in seconds[count // 4 :])  # once all prefixes have been seen
    hit_share = core.hit_tokens / core.tokens
    core, batches = make_core(replicas), make_routes(random, prefixes, tokens, count, BATCH)
    began = time.perf_counter()
    for number, asked in enumerate(batches):
        core.route(asked, number * BATCH / 1000)
    return {
        "decision_microseconds": round(statistics.median(microseconds), 1),
        "decision_microseconds_p99": round(microseconds[int(0.99 * len(microseconds))], 1),
        "decisions_per_second": round(core.decisions / (time.perf_counter() - began)),
        "hit_share": round(hit_share, 3),
    }


def make_core(replicas: int) -> RouterCore:
    """Return a core that knows so many idle replicas."""
    core = RouterCore(make_policy("prefix"))
    for number in range(replicas):
        name = f"replica-{number}/"
        core.scheduler_up(name, 1)
        nothing = BlockEvents(epoch=1, block_size=BLOCK_SIZE, stored=(), removed=(), reset=True)
        core.blocks_changed(name, nothing)
        load = Load(seen=int64([]), waiting_tokens=0, running=0, waiting=0, seconds_per_token=1e-4)
        core.loaded(name, 1, load)
    return core


def make_routes(
    random: np.random.Generator, prefixes: Tokens, tokens: int, count: int, batch: int
) -> list[Route]:
    """Return questions about `count` prompts, `batch` in each."""
    return [
        make_route([_prompt(random, prefixes, tokens) for _ in range(min(batch, count - start))])
        for start in range(0, count, batch)
    ]


def _prompt(random: np.random.Generator, prefixes: Tokens, tokens: int) -> Tokens:
    prefix = prefixes[random.integers(len(prefixes))]
    own = random.integers(0, VOCABULARY, tokens - len(prefix), np.int32)
    return np.concatenate([prefix, own])


def make_route(prompts: list[Tokens]) -> Route:
    """Return the question where these prompts had best go."""
    count = len(prompts)
    lengths = int32([len(one) for one in prompts])
    return Route(
        model="",
        token_ids=np.concatenate(prompts),
        lengths=lengths,
        max_tokens=int32([64] * count),
        salts=(None,) * count,
        extra_keys=((),) * count,
        adapters=(None,) * count,
        tenants=("",) * count,
        text_tokens=lengths,
    )


def measure_warming(replicas: int, blocks: int) -> float:
    """Return the seconds in which a new core takes in the snapshots of all block managers, decoding included."""
    random = np.random.default_rng(1)
    snapshots = [_snapshot(random, blocks) for _ in range(replicas)]
    core, codec = make_core(replicas), Codec()
    began = time.perf_counter()
    for number, bodies in enumerate(snapshots):
        for body in bodies:
            events = codec.decode("BlockEvents", body)
            assert isinstance(events, BlockEvents)
            core.blocks_changed(f"replica-{number}/", events)
    return time.perf_counter() - began


def _snapshot(random: np.random.Generator, blocks: int) -> list[bytes]:
    """Return what a block manager sends of its blocks, whose prompts nobody else has."""
    token_ids = random.integers(0, VOCABULARY, blocks * BLOCK_SIZE, np.int32)
    names = block_names(root_name(), full_blocks(token_ids, BLOCK_SIZE)[0])
    codec, bodies = Codec(), []
    for start in range(0, blocks, SNAPSHOT_BLOCKS):
        end = start + SNAPSHOT_BLOCKS
        parents = [None, *names][start:end]
        events = BlockEvents(
            epoch=1,
            block_size=BLOCK_SIZE,
            stored=tuple(map(_stored, names[start:end], parents)),
            removed=(),
            reset=not start,
        )
        bodies.append(codec.encode(events)[0])
    return bodies


def _stored(name: bytes, parent: bytes | None) -> StoredBlock:
    return StoredBlock(tier="device", name=name, parent=parent)
