"""`pageant bench runtime`: what messages cost, beside bare asyncio and bare ZeroMQ in the same run.

Each measurement and what it is held against are taken in turn, `runs` times; ratios are taken pair by pair
and their median counts.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

import numpy as np
import typer

from pageant.actors.runtime.cluster import Cluster
from pageant.actors.runtime.loop import new_event_loop
from pageant.actors.runtime.processor_time import processor_seconds
from pageant.actors.runtime.resolving import Cast, resolve
from pageant.actors.runtime.topology import parse
from pageant.protocol.codec import Codec
from pageant.scripts.bench.bare import ZmqPeer, future_round_trips_per_second, queue_puts_per_second
from pageant.scripts.bench.echo import BenchNote, BenchPing, BenchSend
from pageant.scripts.bench.progress import rounds
from pageant.scripts.engine_options import DEMO_MODEL
from pageant.scripts.report import Json, publish

CAST = Cast({"echo": "pageant.scripts.bench.echo:Echo"}, frozenset(), frozenset())
TELL_WINDOW = 10_000
ARRAY_BYTES = (1 << 20, 8 << 20)
IDLE_SECONDS = 5.0


def bench(
    json: Json = None,
    seconds: Annotated[float, typer.Option(help="For each measurement, about.")] = 1.0,
    runs: Annotated[int, typer.Option(help="Of each measurement; the median counts.")] = 5,
) -> None:
    """Messages per second and round trips, beside bare asyncio and bare ZeroMQ; and an idle engine's CPU."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        figures = runner.run(_measure(seconds, runs))
    figures["idle_engine_cpu_percent"] = round(idle_cpu_percent(IDLE_SECONDS), 3)
    publish(figures, [f"{name:>44}: {value:,}" for name, value in figures.items()], json)


async def _measure(seconds: float, runs: int) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    async with _Echo("one") as here:
        count = max(1000, int(300_000 * seconds))
        tells = await _in_turn(
            "tells", runs, lambda: _tells(here, count), lambda: queue_puts_per_second(count)
        )
        figures |= _compared("tells_per_second", "queue_puts_per_second", tells)
        count = max(1000, int(60_000 * seconds))
        asks = await _in_turn(
            "asks", runs, lambda: _asks(here, count), lambda: future_round_trips_per_second(count)
        )
        figures |= _compared("asks_per_second", "future_round_trips_per_second", asks)
    async with _Echo("each") as there:
        with ZmqPeer() as peer:
            payload = b"".join((b"x" * 60, Codec().encode(BenchPing(value=1))[0]))  # header and body
            count = max(200, int(3000 * seconds))
            trips = await _in_turn(
                "asks between processes",
                runs,
                lambda: _ask_microseconds(there, count),
                lambda: _bare_microseconds(peer, payload, count),
            )
            figures |= _compared("remote_ask_median_microseconds", "bare_zmq_median_microseconds", trips)
        for size in ARRAY_BYTES:
            rates = [await _gigabytes_per_second(there, size) for _ in range(runs)]
            figures[f"array_{size >> 20}_MiB_gigabytes_per_second"] = round(statistics.median(rates), 3)
    return figures


async def _in_turn(
    what: str, runs: int, ours: Callable[[], Awaitable[float]], bare: Callable[[], Awaitable[float]]
) -> list[tuple[float, float]]:
    await ours(), await bare()  # warm up
    return [(await ours(), await bare()) for _ in rounds(what, runs)]


def _compared(our_name: str, bare_name: str, pairs: list[tuple[float, float]]) -> dict[str, Any]:
    return {
        our_name: round(statistics.median(ours for ours, _ in pairs), 1),
        bare_name: round(statistics.median(bare for _, bare in pairs), 1),
        f"{our_name}_ratio": round(statistics.median(ours / bare for ours, bare in pairs), 3),
    }


class _Echo:
    """A cluster with the echo actor, in this process or in its own."""

    def __init__(self, placement: str) -> None:
        self._cluster = Cluster(resolve(parse({"placement": placement}), CAST))
        self.node = self._cluster.node

    async def __aenter__(self) -> _Echo:
        await self._cluster.start()
        async for _ in self._cluster.startup():
            pass
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._cluster.stop()


async def _tells(echo: _Echo, count: int) -> float:
    """Tells per second, until the last has been handled."""
    note, ping = BenchNote(value=1), BenchPing(value=1)
    began = time.perf_counter()
    for start in range(0, count, TELL_WINDOW):
        for _ in range(min(TELL_WINDOW, count - start)):
            echo.node.tell("echo", note)
        await echo.node.ask("echo", ping, 30.0)
    return count / (time.perf_counter() - began)


async def _asks(echo: _Echo, count: int) -> float:
    ping = BenchPing(value=1)
    began = time.perf_counter()
    for _ in range(count):
        await echo.node.ask("echo", ping, 30.0)
    return count / (time.perf_counter() - began)


async def _ask_microseconds(echo: _Echo, count: int) -> float:
    ping = BenchPing(value=1)
    seconds = []
    for _ in range(count):
        began = time.perf_counter()
        await echo.node.ask("echo", ping, 30.0)
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds) * 1e6


async def _bare_microseconds(peer: ZmqPeer, payload: bytes, count: int) -> float:
    return statistics.median(await peer.round_trips(payload, count)) * 1e6


async def _gigabytes_per_second(echo: _Echo, size: int) -> float:
    """Send bytes there and back, one message at a time. Return the bytes moved per second of waiting."""
    count = max(4, (256 << 20) // size)
    data = np.zeros(size, np.uint8)
    began = time.perf_counter()
    for _ in range(count):
        await echo.node.ask("echo", BenchSend(data=data), 30.0)
    return 2 * count * size / (time.perf_counter() - began) / 1e9


def idle_cpu_percent(seconds: float) -> float:
    """CPU time that an engine with nothing to do takes, of one core, all its processes together."""
    from pageant.actors.client.llm import LLM
    from pageant.protocol.sampling import SamplingParams

    with LLM(DEMO_MODEL, progress=False) as llm:
        llm.generate("Hello", SamplingParams(max_tokens=2), progress=False)
        pids = [node.pid for node in llm.statistics()]
        time.sleep(1.0)  # the pool threads of the last step go to sleep
        before = sum(map(_cpu_seconds, pids))
        time.sleep(seconds)
        return 100 * (sum(map(_cpu_seconds, pids)) - before) / seconds


def _cpu_seconds(pid: int) -> float:
    if pid == os.getpid():
        return time.process_time()
    return processor_seconds(pid)
