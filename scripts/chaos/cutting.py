"""Hosts whose cables are pulled while requests stream: nothing may be lost, and no actor be alive twice."""

from __future__ import annotations

import asyncio
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import psutil

from pageant.actors.client.engine import Engine
from pageant.actors.runtime.transport.keys import make_keys, write_keys
from pageant.protocol.supervision import Directory, GetDirectory
from pageant.scripts.chaos.hosts import Keeper, Lan
from pageant.scripts.chaos.load import Load, mixed_requests, undisturbed, verdict
from pageant.scripts.report import publish, table

SETTINGS: dict[str, Any] = {
    "dtype": "float32",
    "max_num_seqs": 128,
    "speculation": {"method": "ngram", "adaptive": False},
}
BACK_SECONDS_MAX = 90.0  # for everything to go on when a cable is back
PORT = 5700
NEAR = ("scheduler", "blocks", "tokenizer", "detokenizer", "grammar", "drafter")


class Census:
    """Counts the processes that have a life of the scheduler in them."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._pids: dict[int, int] = {}  # by incarnation
        self.alive_max = 0

    @property
    def lives(self) -> int:
        """Return how many lives there have been."""
        return len(self._pids)

    async def watch(self) -> None:
        """Looks again and again, until it is cancelled."""
        while True:
            directory: Directory = await self._engine.ask("supervisor", GetDirectory())
            pids = {node.name: node.pid for node in directory.nodes}
            for actor in directory.actors:
                if actor.name == "scheduler" and actor.up and actor.node in pids:
                    self._pids[actor.incarnation] = pids[actor.node]
            self.alive_max = max(self.alive_max, sum(map(_runs, set(self._pids.values()))))
            await asyncio.sleep(0.02)


def _runs(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def cut(engine: dict[str, Any], *, seconds: float, requests: int, tokens: int, path: Path | None) -> int:
    """Prints what became of the requests; see `run_cuts`. Returns how many were lost or changed, and how many lives
    of the scheduler there were beside the one."""
    given = SETTINGS | {key: value for key, value in engine.items() if value is not None}
    figures = asyncio.run(run_cuts(given, seconds=seconds, requests=requests, tokens=tokens))
    rows = [(host, row["pause_seconds"]) for host, row in figures["cuts"].items()]
    lines = table((f"cut off for {seconds:g} s", "longest pause"), rows)
    lives, most = int(figures["lives_of_the_scheduler"]), int(figures["schedulers_alive_max"])
    lines.append(f"{lives} lives of the scheduler, at most {most} at a time")
    publish(figures, [*lines, *verdict(figures)], path)
    return len(figures["lost"] + figures["changed"]) + abs(most - 1)


async def run_cuts(settings: dict[str, Any], *, seconds: float, requests: int, tokens: int) -> dict[str, Any]:
    """Figures of one run: the executor on a host of its own, most else on another, for which a third stands by.

    The cable of each is pulled in turn; whoever stands by is started when that of the former is.

    Args:
        seconds: that a cable is out.
    """
    asked = mixed_requests(requests, tokens)
    lan = Lan("front", "near", "far", "standby")
    async with AsyncExitStack() as stack:
        stack.callback(lan.remove)
        lan.enter("front")
        keys = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "pageant.key"
        write_keys(keys, make_keys())
        listen = f"tcp://{lan.address('front')}:{PORT}"
        # A process of its own for each life, so that they can be counted: the keeper starts the next.
        joining = ("--join", listen, "--keys", str(keys), "--rejoin-seconds", "0")

        def keep(host: str, node: str) -> None:
            stack.push_async_callback(Keeper(lan, host, node, joining).stop)

        for host in ("near", "far"):
            keep(host, host)
        topology = settings | {
            **{"listen": listen, "transport": "tcp", "keys": str(keys), "placement": "auto"},
            "nodes": {"front": {}, **{host: {"host": lan.address(host)} for host in ("near", "far")}},
            "actors": {"executor": {"node": "far"}, **{name: {"node": "near"} for name in NEAR}},
        }
        engine = await stack.enter_async_context(Engine(topology=topology))
        right = await undisturbed(engine, asked)
        load = Load(engine, asked, right)
        census = Census(engine)
        watching = asyncio.create_task(census.watch())
        load.begin()
        cuts = {}
        for host in ("near", "far", "standby"):
            await load.all_have_moved(time.monotonic())
            began = time.monotonic()
            lan.plug(host, "down")
            if host == "near":
                keep("standby", "near")
            await asyncio.sleep(seconds)
            lan.plug(host, "up")
            async with asyncio.timeout(BACK_SECONDS_MAX):
                await load.all_have_moved(time.monotonic())
            cuts[host] = {"pause_seconds": round(load.pause(began), 2)}
        await load.end()
        watching.cancel()
        await asyncio.wait([watching])
        return {
            "settings": settings | {"model": Path(settings.get("model") or "").name},
            **{"streams": requests, "seconds_of_each_cut": seconds, "cuts": cuts},
            **{"requests": load.requests, "tokens": load.tokens, "lost": load.lost, "changed": load.changed},
            **{"lives_of_the_scheduler": census.lives, "schedulers_alive_max": census.alive_max},
        }
