"""Whom to kill next, and how long everybody then waited."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import statistics
import time
from dataclasses import dataclass
from typing import Any

from pageant.actors.frontend.engine import Engine
from pageant.protocol.supervision import Directory, GetDirectory
from pageant.scripts.chaos.load import Load

RECOVERY_SECONDS_MAX = 60.0
PAUSE_SECONDS_MAX = 2.0
LOOK_SECONDS = 0.02


@dataclass(frozen=True)
class Kill:
    """A process that was killed: how long its actors were away, and the longest that any stream paused."""

    node: str
    away_seconds: float
    pause_seconds: float

    @property
    def bar(self) -> float:
        """How long a pause may be: an executor is not to be had before it is ready."""
        return PAUSE_SECONDS_MAX + (self.away_seconds if self.node.startswith("executor") else 0.0)


class Killer:
    """Kills processes of a topology under load, one after another."""

    def __init__(self, engine: Engine, load: Load, rng: random.Random) -> None:
        self._engine, self._load, self._rng = engine, load, rng
        self.kills: list[Kill] = []

    async def directory(self) -> Directory:
        """Who is there."""
        found: Directory = await self._engine.ask("supervisor", GetDirectory())
        return found

    async def nodes(self) -> list[str]:
        """Those that may be killed: every process but this one."""
        return [node.name for node in (await self.directory()).nodes if node.pid != os.getpid()]

    async def kill(self, node: str) -> Kill:
        """Kills a node's process; returns when all streams go on, and its actors are back.

        Raises:
            TimeoutError: that takes longer than `RECOVERY_SECONDS_MAX`; with how everything stands.
        """
        directory = await self.directory()
        (entry,) = [one for one in directory.nodes if one.name == node]
        os.kill(entry.pid, signal.SIGKILL)
        at = time.monotonic()
        try:
            async with asyncio.timeout(RECOVERY_SECONDS_MAX):
                away = await self._away(node, entry.incarnation, at)
                back = time.monotonic()
                await self._load.all_have_moved(back)
        except TimeoutError:
            stuck = self._load.waiting_since(at)
            scheduler = await self._engine.scheduler_statistics()
            raise TimeoutError(f"after the death of {node}, requests {stuck} wait; {scheduler}") from None
        self.kills.append(Kill(node, away, self._load.pause(at)))
        return self.kills[-1]

    async def _away(self, node: str, incarnation: int, at: float) -> float:
        """Waits until the actors of a node's next life are up: seconds since `at`."""
        while True:
            directory = await self.directory()
            lives = {one.name: one.incarnation for one in directory.nodes}
            actors = [actor for actor in directory.actors if actor.node == node]
            if lives.get(node, 0) > incarnation and all(actor.up for actor in actors):
                return time.monotonic() - at
            await asyncio.sleep(LOOK_SECONDS)

    async def each_in_turn(self) -> None:
        """Every process once."""
        for node in await self.nodes():
            await self.kill(node)

    async def at_random(self, seconds: float) -> None:
        """Any, again and again, with up to a second in between."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            await self.kill(self._rng.choice(await self.nodes()))
            await asyncio.sleep(self._rng.random())

    def figures(self) -> dict[str, Any]:
        """By node: how often, and the pauses in seconds."""
        found = {}
        for node in dict.fromkeys(kill.node for kill in self.kills):
            kills = [kill for kill in self.kills if kill.node == node]
            pauses = [kill.pause_seconds for kill in kills]
            found[node] = {
                "kills": len(kills),
                "pause_seconds_median": round(statistics.median(pauses), 2),
                "pause_seconds_max": round(max(pauses), 2),
                "away_seconds_median": round(statistics.median(kill.away_seconds for kill in kills), 2),
                "over_the_bar": sum(kill.pause_seconds > kill.bar for kill in kills),
            }
        return found
