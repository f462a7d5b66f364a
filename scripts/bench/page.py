"""`pageant bench page`: the processor time that the web page costs a server, and how soon it is there.

Two servers of the demo model, one without the page, are measured in turns: at rest and under the same paced load, with
nobody looking, and with one page open. An open page is a client that asks what the page asks and reads its stream;
what a browser draws is not the server's cost. All processes of a server count.

Where there is Chromium, it says how soon it paints the page, with nothing of it in its cache, and how much it loads.
"""

from __future__ import annotations

import asyncio
import http.client
import statistics
import threading
import time
import timeit
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, cast
from urllib.parse import urlsplit

import numpy as np
import typer
from websockets.sync.client import connect

from pageant.actors.executor.guided.guiding import RowTokens
from pageant.actors.executor.step_log import StepLog
from pageant.actors.executor.steps import Step
from pageant.scripts import chromium
from pageant.scripts.bench.progress import rounds
from pageant.scripts.bench.serving.drive import Driver, Run
from pageant.scripts.bench.serving.load import Load
from pageant.scripts.bench.serving.meter import cpu_seconds
from pageant.scripts.bench.serving.servers import ComparedServer
from pageant.scripts.engine_options import DEMO_MODEL
from pageant.scripts.http_client import Client
from pageant.scripts.loads import Arrivals, Lengths
from pageant.scripts.report import Json, in_turns, publish

ROWS = 256
SETTLE_SECONDS = 1.0
WARM_SECONDS = 2.0
TOKENS = 32
EVEN = 100.0
"""Burstiness of arrivals that are nearly even."""
CASES = (("no page", False), ("nobody looks", False), ("one page open", True))


def bench(
    json: Json = None,
    runs: Annotated[int, typer.Option(help="Of each case; medians count.")] = 3,
    seconds: Annotated[float, typer.Option(help="Of each run.")] = 9.0,
    rate: Annotated[float, typer.Option(help="Requests per second of the load, of 32 tokens each.")] = 4.0,
) -> None:
    """Measure what the web page costs, while nobody looks and while one does, and how soon it is painted."""
    shares: dict[tuple[str, str], list[float]] = {}
    with (
        ComparedServer("pageant", DEMO_MODEL, Path()) as paged,
        ComparedServer("pageant", DEMO_MODEL, Path(), more=["--no-page"]) as bare,
    ):
        for server in (paged, bare):
            asyncio.run(_drive(server, WARM_SECONDS, rate))
        for number in rounds("page", runs):
            for name, is_open in in_turns(CASES, number):
                for state, at in (("at rest", 0.0), ("under load", rate)):
                    server = bare if name == "no page" else paged
                    share = _share(server, seconds, at, is_open=is_open)
                    shares.setdefault((state, name), []).append(share)
        painted = asyncio.run(_paints(paged.url, runs)) if chromium.CHROMIUM else {}
    figures = _summary(shares) | painted | {"log of steps, us per step of 256 rows": _log_microseconds()}
    publish(figures, [f"{name:>45}: {value}" for name, value in figures.items()], json)


async def _paints(url: str, runs: int) -> dict[str, float]:
    """Return the first paint and the weight of the page, in Chromium with an empty cache."""
    with chromium.started() as browser:
        await chromium.first_paint(browser, url)  # the browser warms up
        found = [await chromium.first_paint(browser, url) for _ in range(runs)]
    return {
        "first contentful paint, ms": round(statistics.median(one for one, _ in found)),
        "page loaded by then, KB": round(max(size for _, size in found) / 1000, 1),
    }


def _summary(shares: dict[tuple[str, str], list[float]]) -> dict[str, Any]:
    """Return percents of a core: medians, and medians of the differences within rounds."""
    found: dict[str, Any] = {
        f"{state}, {name}, % of a core": round(100 * statistics.median(each), 2)
        for (state, name), each in shares.items()
    }
    for state in ("at rest", "under load"):
        bare = shares[state, "no page"]
        for name, _ in CASES[1:]:
            more = [one - other for one, other in zip(shares[state, name], bare, strict=True)]
            found[f"{state}, {name}, more than without"] = round(100 * statistics.median(more), 2)
    return found


def _share(server: ComparedServer, seconds: float, rate: float, *, is_open: bool) -> float:
    """Return the share of a core that the server's processes took, over a run."""
    ended = threading.Event()
    page = threading.Thread(target=_look, args=(server.url, ended))
    if is_open:
        page.start()
    try:
        time.sleep(SETTLE_SECONDS)
        before, began = sum(cpu_seconds(server.pid).values()), time.perf_counter()
        if rate:
            asyncio.run(_drive(server, seconds, rate))
        time.sleep(max(0.0, began + seconds - time.perf_counter()))
        took = sum(cpu_seconds(server.pid).values()) - before
        return took / (time.perf_counter() - began)
    finally:
        ended.set()
        if is_open:
            page.join()


async def _drive(server: ComparedServer, seconds: float, rate: float) -> None:
    """Send the same requests at the same times, whenever it is called."""
    tokens = Lengths.parse(str(TOKENS), "tokens")
    load = Load(tokens, tokens, Lengths.parse("1", "turns"), 0, 1, 0, None, 0)
    run = Run(
        model=DEMO_MODEL.name,
        conversations=max(1, round(rate * seconds) - 1),
        seconds=seconds,
        concurrency=float("inf"),
        chat=False,
        think_seconds=0.0,
        extra={"temperature": 0, "ignore_eos": True},
        verify=False,
        limits={},
    )
    client = Client(server.url, None)
    try:
        await Driver(client, load, Arrivals(rate, EVEN, 0.0, 0.0), run).drive()
    finally:
        client.close()


def _look(url: str, ended: threading.Event) -> None:
    """Ask what an open page asks, and read until the end."""
    place = urlsplit(url)
    connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=30)
    for path in ("/", "/page/page.js", "/statistics?steps=240"):
        connection.request("GET", path, headers={"accept": "text/html"})
        connection.getresponse().read()
    connection.close()
    with connect(f"ws://{place.netloc}/statistics/stream", max_size=None) as stream:
        while not ended.is_set():
            stream.recv()


def _log_microseconds() -> float:
    """Return the cost of the executor's log for a step, which is always kept."""
    plan = SimpleNamespace(
        rows=np.arange(ROWS, dtype=np.int32), new=(), num_tokens=np.ones(ROWS, np.int32), draft_ids=()
    )
    step = SimpleNamespace(
        plan=plan,
        launched=SimpleNamespace(num_steps=1, began=1.0, reached_draw=0.0),
        tokens=SimpleNamespace(drafting_seconds=0.0),
        prefill_tokens=0,
        came=0.5,
    )
    nothing = np.zeros(ROWS, np.int64)
    drawn, log = RowTokens(plan.rows, nothing, nothing), StepLog()
    took = timeit.repeat(lambda: log.add(cast(Step, step), drawn, ROWS, 2.0), number=2000, repeat=7)
    return round(1e6 * min(took) / 2000, 2)
