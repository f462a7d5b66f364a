"""`pageant chaos --poison N`: hostile requests from several clients beside ordinary ones, which must not feel them."""

from __future__ import annotations

import asyncio
import itertools
import time
import urllib.error
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

from pageant.actors.client.cast import HTTP
from pageant.actors.client.engine import Engine
from pageant.actors.runtime.yaml import merge
from pageant.protocol.errors import BadRequest, PageantError
from pageant.protocol.fronting import GetServer, ServerAddress
from pageant.protocol.sampling import SamplingParams
from pageant.protocol.structured_outputs import StructuredOutputsParams
from pageant.protocol.supervision import Directory, GetDirectory
from pageant.scripts.chaos.sources import hostile_sources
from pageant.scripts.report import publish, table

CLIENTS = 10
PAUSE_SECONDS_MAX = 1.5
HEALTH_SECONDS = 0.5
OUTCOME_CHARACTERS_MAX = 160
PROMPT = "A list is"
ORDINARY = {
    "a stream": SamplingParams(temperature=0.0, max_tokens=400, ignore_eos=True),
    "a guided stream": SamplingParams(
        temperature=0.0,
        max_tokens=200,
        structured_outputs=StructuredOutputsParams(regex="([a-z]{1,8} ){20,60}end"),
    ),
}
BAR = (
    f"The bar: no ordinary request fails, or pauses for more than {PAUSE_SECONDS_MAX:g} s; no actor is started again; "
    "the server is healthy throughout."
)
SETTINGS: dict[str, Any] = {"actors": {HTTP: {"options": {"port": 0}}}}


def poison(engine: dict[str, Any], *, requests: int, seconds: float, path: Path | None) -> int:
    """Print what became of hostile requests and of those beside them. Return how many bars were missed.

    Args:
        engine: arguments of the engine, over `SETTINGS`.
        requests: hostile ones, over all clients.
        seconds: that they are spread over.
        path: where the figures go as JSON.
    """
    given = merge(SETTINGS, {key: value for key, value in engine.items() if value is not None})
    figures = asyncio.run(run(given, requests=requests, seconds=seconds))
    missed = bars_missed(figures)
    rows = [(name, str(value)) for name, value in figures.items() if not isinstance(value, dict)]
    outcomes = [(name, str(count)) for of in ("outcomes", "failures") for name, count in figures[of].items()]
    verdicts = [f"missed: {one}" for one in missed] or ["every bar holds"]
    publish(figures, [*table(("what", "figure"), [*rows, *outcomes]), BAR, *verdicts], path)
    return len(missed)


def bars_missed(figures: dict[str, Any]) -> list[str]:
    """Return what a run did not hold of what it should."""
    bars = {
        "an ordinary request failed": figures["ordinary_failed"] > 0,
        f"an ordinary request paused for {figures['longest_pause']:.2f} s": figures["longest_pause"]
        > PAUSE_SECONDS_MAX,
        "an executor was started again": figures["executor_restarts"] > 0,
        "another actor was started again": figures["other_restarts"] > 0,
        "the server was not healthy": figures["unhealthy"] > 0,
    }
    return [bar for bar, missed in bars.items() if missed]


async def run(settings: dict[str, Any], *, requests: int, seconds: float) -> dict[str, Any]:
    """Return the figures of one run."""
    async with Engine(**settings) as engine:
        address: ServerAddress = await engine.ask(HTTP, GetServer())
        ordinary, health = Ordinary(engine), Health(f"{address.url}/health")
        beside = [asyncio.create_task(one) for one in (*ordinary.streams(), health.watch())]
        await ordinary.began.wait()
        sources = hostile_sources()
        outcomes: Counter[str] = Counter()
        slowest = await asyncio.gather(
            *(
                _client(engine, list(itertools.islice(sources, count)), seconds, outcomes)
                for count in _shares(requests)
            )
        )
        ordinary.ending = health.ending = True
        await asyncio.gather(*beside)
        directory: Directory = await engine.ask("supervisor", GetDirectory())
    restarts = {entry.name: entry.restarts for entry in directory.actors}
    of_executors = sum(count for name, count in restarts.items() if "executor" in name)
    return {
        "hostile_requests": requests,
        "seconds": seconds,
        "clients": CLIENTS,
        "slowest_hostile_answer": round(max(slowest), 3),
        "ordinary_requests": ordinary.count,
        "ordinary_failed": len(ordinary.failed),
        "longest_pause": round(ordinary.longest_pause, 3),
        "executor_restarts": of_executors,
        "other_restarts": sum(restarts.values()) - of_executors,
        "health_checks": health.checks,
        "unhealthy": health.unhealthy,
        "outcomes": dict(outcomes.most_common()),
        "failures": dict(Counter(ordinary.failed)),
    }


def _shares(requests: int) -> list[int]:
    return [requests // CLIENTS + (client < requests % CLIENTS) for client in range(CLIENTS)]


async def _client(
    engine: Engine, asked: list[tuple[str, dict[str, Any]]], seconds: float, outcomes: Counter[str]
) -> float:
    """Ask one thing after another. Return the seconds of the slowest answer."""
    slowest = 0.0
    for name, fields in asked:
        began = time.perf_counter()
        try:
            params = SamplingParams(max_tokens=8, structured_outputs=StructuredOutputsParams.of(fields))
            await engine.complete(PROMPT, params)
            outcomes["answered"] += 1
        except BadRequest:
            outcomes["refused"] += 1
        except PageantError as error:
            outcomes[f"failed: {name}: {error}"[:OUTCOME_CHARACTERS_MAX]] += 1
        took = time.perf_counter() - began
        slowest = max(slowest, took)
        await asyncio.sleep(max(0.0, seconds / len(asked) - took))
    return slowest


class Ordinary:
    """Requests of every kind in `ORDINARY` that stream all the time, and the longest wait between two outputs."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.began = asyncio.Event()
        self.ending = False
        self.count, self.longest_pause, self.failed = 0, 0.0, list[str]()

    def streams(self) -> list[Any]:
        """Return what streams, one for each kind."""
        return [self._stream(params) for params in ORDINARY.values()]

    async def _stream(self, params: SamplingParams) -> None:
        while not self.ending:
            since = time.perf_counter()
            try:
                async for _ in self._engine.generate(PROMPT, params):
                    now = time.perf_counter()
                    if self.began.is_set():
                        self.longest_pause = max(self.longest_pause, now - since)
                    since = now
            except PageantError as error:
                self.failed.append(str(error))
            self.count += 1
            self.began.set()


class Health:
    """The server's own word on whether it is healthy, asked for all the time."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.ending = False
        self.checks = self.unhealthy = 0

    async def watch(self) -> None:
        """Ask until the end."""
        while not self.ending:
            self.unhealthy += not await asyncio.to_thread(self._check)
            self.checks += 1
            await asyncio.sleep(HEALTH_SECONDS)

    def _check(self) -> bool:
        try:
            with urllib.request.urlopen(self._url, timeout=PAUSE_SECONDS_MAX * 10) as answer:
                return bool(answer.status == 200)
        except (OSError, urllib.error.HTTPError):
            return False
