"""`pageant chaos`: each process killed in turn while requests stream, then any killed or stopped at random."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

from pageant.actors.client.engine import Engine
from pageant.scripts.chaos.killing import PAUSE_SECONDS_MAX, Killer
from pageant.scripts.chaos.load import Load, mixed_requests, undisturbed, verdict
from pageant.scripts.report import publish, table

SETTINGS: dict[str, Any] = {
    "placement": "each",
    "dtype": "float32",
    "max_num_seqs": 128,
    "speculation": {"method": "ngram", "adaptive": False},  # a drafter that is always asked
    "heartbeat_seconds": 0.5,
    "suspicion_seconds": 3.0,
}
HEADINGS = (
    *("what died", "times", "noticed after, s", "up again after, s", "streams paused, s", "CPU, s"),
    *("longest pause, s", "pauses over the bar"),
)

BAR = (
    f"The bar: no stream pauses for more than {PAUSE_SECONDS_MAX:g} s, beside the time in which it cannot go on (until "
    "an executor is up again; until a stopped process is suspected)."
)


def chaos(
    engine: dict[str, Any], *, minutes: float, requests: int, tokens: int, seed: int, path: Path | None
) -> int:
    """Print what became of the requests, and how long each death held them up. Return how many bars were missed.

    Args:
        engine: arguments of the engine, over `SETTINGS`.
        requests: that stream at a time.
        tokens: output tokens of each request, about.
        path: where the figures go as JSON.
    """
    given = SETTINGS | {key: value for key, value in engine.items() if value is not None}
    figures = asyncio.run(run(given, minutes=minutes, requests=requests, tokens=tokens, seed=seed))
    rows = [(node, *row.values()) for node, row in figures["died"].items()]
    publish(figures, [*table(HEADINGS, rows), BAR, *verdict(figures)], path)
    over: int = sum(row["over_the_bar"] for row in figures["died"].values())
    return over + len(figures["lost"]) + len(figures["changed"])


async def run(
    settings: dict[str, Any], *, minutes: float, requests: int, tokens: int, seed: int
) -> dict[str, Any]:
    """Figures of one run: what was lost or changed, and the pauses by node."""
    asked = mixed_requests(requests, tokens)
    async with Engine(**settings) as engine:
        right = await undisturbed(engine, asked)
        load = Load(engine, asked, right)
        load.begin()
        # A process may have answered just before it stopped, and is looked for once per heartbeat.
        suspected_after = settings["suspicion_seconds"] + 2 * settings["heartbeat_seconds"]
        killer = Killer(engine, load, random.Random(seed), suspected_after)
        await asyncio.sleep(1.0)
        await killer.each_in_turn()
        await killer.at_random(minutes * 60)
        await load.end()
        await _rest(engine)
    return {
        "settings": settings | {"model": Path(settings.get("model") or "").name},
        **{"streams": requests, "minutes_of_random_deaths": minutes, "seed": seed},
        **{"requests": load.requests, "tokens": load.tokens, "lost": load.lost, "changed": load.changed},
        "deaths": len(killer.deaths),
        "died": killer.figures(),
    }


async def _rest(engine: Engine) -> None:
    """Wait until no request runs or waits, and no block is held.

    Raises:
        TimeoutError: that is not so within 20 s.
    """
    async with asyncio.timeout(20):
        while True:
            scheduler, pool = await engine.scheduler_statistics(), await engine.pool_statistics()
            if not (scheduler.num_running or scheduler.num_waiting or pool.blocks_held):
                return
            await asyncio.sleep(0.1)
