"""`pageant chaos --replicas N`: whole replicas and the router die, and replicas come and go, while requests stream."""

from __future__ import annotations

import asyncio
import gc
import random
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from pageant.actors.client.engine import Engine
from pageant.actors.runtime.address import replica_of
from pageant.actors.runtime.yaml import merge
from pageant.protocol.statistics import GetFrontendStatistics
from pageant.scripts.chaos.killing import Killer
from pageant.scripts.chaos.load import GAP_SECONDS, Load, losses, mixed_requests, undisturbed, verdict
from pageant.scripts.report import publish, table

OWNED = ("executor", "scheduler", "blocks", "detokenizer", "grammar", "drafter")
ROUTER_NODE = "advice"
SETTINGS: dict[str, Any] = {
    "dtype": "float32",
    "max_num_seqs": 64,
    "speculation": {"method": "ngram", "adaptive": False},
    "routing": "least",
}
APART: dict[str, Any] = {
    "nodes": {"front": {}, "engine-{replica}": {"process": True}, ROUTER_NODE: {"process": True}},
    "actors": {
        **{name: {"node": "engine-{replica}"} for name in OWNED},
        "router": {"node": ROUTER_NODE},
    },
}
"""Every replica in a process of its own, so that all its actors die at once; the router in another."""
PAUSE_SECONDS_MAX = 1.0
CALM_SECONDS = 2.0
"""Before each death, in which gaps of streams are measured."""
GAPS_MAX = 2.0
"""How often the 99th percentile of a stream's gaps the longest may be, while another replica dies."""
OPEN_MAX = 1000
SHOWN = {
    "pause_seconds_max": "longest pause, s",
    "away_seconds_median": "up again after, s",
    "others_gap_p99_before": "others' gaps before: p99, s",
    "others_gap_p99": "then: p99, s",
    "others_gap_max": "longest, s",
}
"""Figures of a death, with their headings. Others are streams that another replica computes."""
SHARE_SECONDS_MAX = 5.0
SHARE_MIN = 0.5
"""Share of the mean number of open requests from which on a new replica counts as having its part."""
PATIENCES = (0.0, 0.5)
"""Seconds of patience of the drains, in turn."""
MEMORIES_SHOWN = 10
"""Sizes of the process that are told, over all cycles."""


def replicas(
    engine: dict[str, Any], *, cycles: int, requests: int, tokens: int, seed: int, path: Path | None
) -> int:
    """Print what became of the requests. Return how many bars were missed.

    Args:
        engine: arguments of the engine, over `SETTINGS`; `replicas` among them.
        cycles: adds and drains under load, instead of deaths; 0 for the deaths.
        requests: that stream at a time.
        tokens: output tokens of each request, about.
        path: where the figures go as JSON.
    """
    given = merge(SETTINGS, {key: value for key, value in engine.items() if value is not None})
    if cycles:
        figures = asyncio.run(run_cycles(given, cycles=cycles, requests=requests, tokens=tokens))
        lines = table(("of the cycles", "figure"), figures["cycles"].items())
    else:
        figures = asyncio.run(run_deaths(given, requests=requests, tokens=tokens, seed=seed))
        deaths = figures["died"]
        rows = [(node, *(row[name] for name in SHOWN)) for node, row in deaths.items()]
        lines = table(("what died", *SHOWN.values()), rows)
    missed = bars_missed(figures)
    publish(figures, [*lines, *verdict(figures), *(missed or ["every bar holds"])], path)
    return len(missed)


def bars_missed(figures: Mapping[str, Any]) -> list[str]:
    """Return what a run did not hold of what it should."""
    bars: dict[str, bool] = {}
    for node, row in figures.get("died", {}).items():
        pause = row["pause_seconds_max"]
        bars[f"{node}: streams paused for {pause:g} s, not {PAUSE_SECONDS_MAX:g}"] = pause > PAUSE_SECONDS_MAX
        gap, most = row["others_gap_max"], round(GAPS_MAX * row["others_gap_p99_before"], 3)
        bars[f"{node}: a stream of another replica waited for {gap:g} s, not {most:g}"] = gap > most
    if (of := figures.get("cycles")) is not None:
        late = of["share_seconds_max"]
        bars[f"a new replica had its share after {late:g} s"] = late > SHARE_SECONDS_MAX
        bars[f"actors are left: {of['actors_left']}"] = bool(of["actors_left"])
    return [*losses(figures), *(text for text, is_missed in bars.items() if is_missed)]


async def run_deaths(settings: dict[str, Any], *, requests: int, tokens: int, seed: int) -> dict[str, Any]:
    """Figures of one run: each replica dies with all its actors, then the router."""
    asked = mixed_requests(requests, tokens)
    async with Engine(**merge(APART, settings)) as engine:
        load = await loaded(engine, asked, gap_seconds=0.0)
        killer = Killer(engine, load, random.Random(seed), 0.0)
        gaps = {}
        for node in sorted(await killer.nodes(), key=lambda name: name == ROUTER_NODE):
            gaps[node] = await _kill_beside(engine, load, killer, node)
        await load.end()
    died = {node: row | gaps[node] for node, row in killer.figures().items()}
    return of_load(settings, load, requests) | {"died": died}


async def _kill_beside(engine: Engine, load: Load, killer: Killer, node: str) -> dict[str, float]:
    """Kill a node. Return the gaps of the streams that other replicas compute: before the death, and from it until
    all streams go on.
    """
    began = time.monotonic()
    await asyncio.sleep(CALM_SECONDS)
    actors = (await killer.directory()).actors
    dying = {replica_of(actor.name) for actor in actors if actor.node == node}
    seen = await engine.ask("frontend", GetFrontendStatistics(open_max=OPEN_MAX))
    others = {one.request_id for one in seen.open if one.replicas and not dying & {*one.replicas}}
    at = time.monotonic()
    calm = load.gaps(others, began, at)
    await killer.kill(node)
    then = load.gaps(others, at, time.monotonic())
    return {
        "others_gap_p99_before": round(float(np.percentile(calm, 99)), 3),
        "others_gap_p99": round(float(np.percentile(then, 99)), 3),
        "others_gap_max": round(max(then), 3),
    }


async def run_cycles(settings: dict[str, Any], *, cycles: int, requests: int, tokens: int) -> dict[str, Any]:
    """Figures of one run: two replicas become three, then one, and two again; so often."""
    asked = mixed_requests(requests, tokens)
    async with Engine(**merge({"placement": "one"}, settings)) as engine:
        names = [one.name for one in await engine.replicas.ls()]
        assert len(names) == 2, f"cycles begin with two replicas, not {len(names)}"
        load = await loaded(engine, asked)
        actors = await _actors(engine)
        shares, drains, memory = [], [], []
        for cycle in range(cycles):
            added = await engine.replicas.add()
            shares.append(await _seconds_until_shared(engine, added))
            for name in (names[1], added):
                began = time.monotonic()
                await engine.replicas.drain(name, PATIENCES[cycle % len(PATIENCES)])
                drains.append(time.monotonic() - began)
            await engine.replicas.add(names[1])
            gc.collect()
            memory.append(psutil.Process().memory_info().rss / 2**20)
        left = sorted(await _actors(engine) - actors)
        await load.end()
    return of_load(settings, load, requests) | {
        "cycles": {
            "cycles": cycles,
            "share_seconds_median": round(sorted(shares)[len(shares) // 2], 2),
            "share_seconds_max": round(max(shares), 2),
            "drain_seconds_max": round(max(drains), 2),
            "memory_mib": [round(one) for one in memory[:: max(1, cycles // MEMORIES_SHOWN)]],
            "actors_left": left,
        }
    }


async def loaded(engine: Engine, asked: Any, gap_seconds: float = GAP_SECONDS) -> Load:
    """Return a load that has begun, with what its requests are undisturbed."""
    load = Load(engine, asked, await undisturbed(engine, asked), gap_seconds)
    load.begin()
    await asyncio.sleep(1.0)
    return load


async def _actors(engine: Engine) -> set[str]:
    return {one for node in await engine.statistics() for one in node.actors}


async def _seconds_until_shared(engine: Engine, name: str) -> float:
    """Wait until a replica has its part of the open requests. Return how long that took."""
    began = time.monotonic()
    while time.monotonic() - began < 2 * SHARE_SECONDS_MAX:
        opened = {one.name: one.num_open for one in await engine.replicas.ls()}
        if opened[name] >= SHARE_MIN * sum(opened.values()) / len(opened):
            break
        await asyncio.sleep(0.05)
    return time.monotonic() - began


def of_load(settings: dict[str, Any], load: Load, requests: int) -> dict[str, Any]:
    """Return what every run tells: its settings, and what became of the requests."""
    return {
        "settings": settings | {"model": Path(settings.get("model") or "").name},
        **{"streams": requests, "requests": load.requests, "tokens": load.tokens},
        **{"lost": load.lost, "changed": load.changed},
    }
