"""Killing of processes: whom next, how long everybody then waited, and what of that was what."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import statistics
import time
from dataclasses import dataclass
from typing import Any

import psutil

from pageant.actors.client.engine import Engine
from pageant.protocol.supervision import Directory, GetDirectory
from pageant.scripts.chaos.load import Load

RECOVERY_SECONDS_MAX = 60.0
PAUSE_SECONDS_MAX = 2.0
LOOK_SECONDS = 0.02
STOPPED_SHARE = 0.1  # of the random deaths: the process is stopped, not killed, and has to be suspected


@dataclass(frozen=True)
class Death:
    """A process that was killed, or stopped.

    Args:
        noticed_seconds: until the supervisor took its actors for gone.
        away_seconds: until they were up again.
        pause_seconds: the longest that any stream brought nothing for.
        cpu_seconds: that the topology's processes computed for, until every stream went on.
    """

    node: str
    noticed_seconds: float
    away_seconds: float
    pause_seconds: float
    cpu_seconds: float
    suspicion_seconds: float | None = None  # that it takes until a stopped process is suspected

    @property
    def label(self) -> str:
        """Return the name under which it is counted."""
        return self.node if self.suspicion_seconds is None else f"{self.node}, stopped"

    @property
    def bar(self) -> float:
        """Return how long a pause may be: an executor is not there before it is ready, and nobody can know of a process
        that stopped before it is suspected."""
        waited = self.suspicion_seconds or 0.0
        if self.node.startswith("executor"):
            waited = self.away_seconds
        return PAUSE_SECONDS_MAX + waited


class Killer:
    """Kills processes of a topology under load, one after another.

    Args:
        suspicion_seconds: how long it takes until a process that stops is suspected.
    """

    def __init__(self, engine: Engine, load: Load, rng: random.Random, suspicion_seconds: float) -> None:
        self._engine, self._load, self._rng = engine, load, rng
        self._suspicion_seconds = suspicion_seconds
        self.deaths: list[Death] = []

    async def directory(self) -> Directory:
        """Return the actors that are there."""
        found: Directory = await self._engine.ask("supervisor", GetDirectory())
        return found

    async def nodes(self) -> list[str]:
        """Return the nodes that may be killed: every process but this one."""
        return [node.name for node in (await self.directory()).nodes if node.pid != os.getpid()]

    async def kill(self, node: str, *, stop: bool = False) -> Death:
        """Kills a node's process, or stops it; returns when all streams go on, and its actors are back.

        Raises:
            TimeoutError: that takes longer than `RECOVERY_SECONDS_MAX`; with how everything stands.
        """
        directory = await self.directory()
        (entry,) = [one for one in directory.nodes if one.name == node]
        others = [one.pid for one in directory.nodes if one is not entry]
        before = _cpu_seconds(others)
        os.kill(entry.pid, signal.SIGSTOP if stop else signal.SIGKILL)
        at = time.monotonic()
        try:
            async with asyncio.timeout(RECOVERY_SECONDS_MAX):
                noticed, away, pid = await self._away(node, entry.incarnation, at)
                await self._load.all_have_moved(time.monotonic())
        except TimeoutError:
            stuck = self._load.waiting_since(at)
            scheduler = await self._engine.scheduler_statistics()
            raise TimeoutError(f"after the death of {node}, requests {stuck} wait; {scheduler}") from None
        cpu = _cpu_seconds(others) - before + _cpu_seconds([pid])
        pause = self._load.pause(at)
        suspicion = self._suspicion_seconds if stop else None
        self.deaths.append(Death(node, noticed, away, pause, cpu, suspicion))
        return self.deaths[-1]

    async def _away(self, node: str, incarnation: int, at: float) -> tuple[float, float, int]:
        """Waits until the actors of a node's next life are up: seconds since `at` until its end was noticed, and
        until then, and its process."""
        noticed: float | None = None
        while True:
            directory = await self.directory()
            found = next((one for one in directory.nodes if one.name == node), None)
            since = time.monotonic() - at
            if noticed is None and (found is None or found.incarnation > incarnation):
                noticed = since
            actors = [actor for actor in directory.actors if actor.node == node]
            if noticed is not None and found is not None and all(actor.up for actor in actors):
                return noticed, since, found.pid
            await asyncio.sleep(LOOK_SECONDS)

    async def each_in_turn(self) -> None:
        """Every process once."""
        for node in await self.nodes():
            await self.kill(node)

    async def at_random(self, seconds: float) -> None:
        """Any, again and again, with up to a second in between; some are stopped."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            await self.kill(self._rng.choice(await self.nodes()), stop=self._rng.random() < STOPPED_SHARE)
            await asyncio.sleep(self._rng.random())

    def figures(self) -> dict[str, Any]:
        """Return by node how often it was killed, and the pauses in seconds."""
        found = {}
        for label in sorted({death.label for death in self.deaths}):
            deaths = [death for death in self.deaths if death.label == label]
            found[label] = {
                "times": len(deaths),
                **{
                    f"{name}_seconds_median": _median(deaths, name)
                    for name in ("noticed", "away", "pause", "cpu")
                },
                "pause_seconds_max": round(max(death.pause_seconds for death in deaths), 2),
                "over_the_bar": sum(death.pause_seconds > death.bar for death in deaths),
            }
        return found


def _median(deaths: list[Death], name: str) -> float:
    seconds: list[float] = [getattr(death, f"{name}_seconds") for death in deaths]
    return round(statistics.median(seconds), 2)


def _cpu_seconds(pids: list[int]) -> float:
    """Return the seconds that these processes have computed so far."""
    total = 0.0
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            times = psutil.Process(pid).cpu_times()
            total += times.user + times.system
    return total
