"""`pageant bench beside`: one load of streams on our server and on vLLM's, in turn, on one machine."""

from __future__ import annotations

import asyncio
import contextlib
import re
import statistics
import urllib.request
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from pageant.actors.runtime.loop import new_event_loop
from pageant.scripts.bench.engine_process import exit_when_asked
from pageant.scripts.bench.peers.environments import HOME, SHOWN_HOME
from pageant.scripts.bench.serving.drive import Driver, Run, first_model
from pageant.scripts.bench.serving.load import Load
from pageant.scripts.bench.serving.meter import Meter
from pageant.scripts.bench.serving.servers import ComparedServer
from pageant.scripts.bench.workloads import END_ID, FIRST_ID
from pageant.scripts.http_client import Client
from pageant.scripts.loads import Arrivals, Lengths
from pageant.scripts.report import Json, publish, table

COLUMNS = (
    "tokens/s",
    "CPU s per 1,000 tokens",
    "TTFT median, ms",
    "TTFT p99, ms",
    "ITL p99, ms",
    "hits",
    "failed",
)


def bench(
    model: Annotated[Path, typer.Argument(help="A checkpoint's folder; a tiny one, to see the server.")],
    json: Json = None,
    peers: Annotated[
        Path, typer.Option(help="The folder of the peers' environments.", show_default=SHOWN_HOME)
    ] = HOME,
    beside: Annotated[str, typer.Option(help="Which peers, with commas between.")] = "vllm",
    concurrency: Annotated[int, typer.Option(help="Streams at a time.")] = 512,
    seconds: Annotated[float, typer.Option(help="Of each round.")] = 20.0,
    rounds: Annotated[int, typer.Option(help="In turn; medians count, after one that warms up.")] = 3,
    replicas: Annotated[int, typer.Option(help="Of each server, with prefix caches from 2 on.")] = 1,
    prefix_tokens: Annotated[int, typer.Option(help="That prompts share.")] = 0,
    prefixes: Annotated[int, typer.Option(help="How many different ones there are in a round.")] = 32,
) -> None:
    """Streams of 16 to 64 tokens in and 64 out: tokens/s, CPU time, time to first token, beside a peer.

    `hits` is the share of prompt tokens that were found in prefix caches.
    """
    exit_when_asked()
    load = Load(
        *(Lengths(16, 64), Lengths(64, 64)),
        token_ids=(FIRST_ID, END_ID - 1),
        prefix_tokens=prefix_tokens,
        prefixes=prefixes,
    )
    found: dict[str, list[dict[str, Any]]] = {}
    with contextlib.ExitStack() as stack:
        names = ["pageant", *filter(None, beside.split(","))]
        servers = [stack.enter_context(ComparedServer(name, model, peers, replicas)) for name in names]
        for turn in range(rounds + 1):
            for server in servers:
                with asyncio.Runner(loop_factory=new_event_loop) as runner:
                    length = seconds if turn else seconds / 4
                    row = runner.run(_round(server, replace(load, seed=turn), concurrency, length))
                if turn:
                    found.setdefault(server.name, []).append(row)
    figures = {name: _medians(rows) for name, rows in found.items()}
    ratios = {
        name: {
            column: round(
                statistics.median(a[column] / b[column] for a, b in zip(found["pageant"], rows, strict=True)),
                3,
            )
            for column in COLUMNS[:-1]
            if all(row[column] for row in rows)
        }
        for name, rows in found.items()
        if name != "pageant"
    }
    rows = [(name, *(row[column] for column in COLUMNS)) for name, row in figures.items()]
    rows += [
        (f"ours / {name}", *(ratio.get(column, "") for column in COLUMNS)) for name, ratio in ratios.items()
    ]
    about = {"concurrency": concurrency, "seconds": seconds, "input_tokens": [16, 64], "output_tokens": 64}
    about |= {"replicas": replicas, "prefix_tokens": prefix_tokens, "prefixes": prefixes}
    publish(
        {"load": about, "servers": figures, "ours_over": ratios, "rounds": found},
        table(("", *COLUMNS), rows),
        json,
    )


async def _round(server: ComparedServer, load: Load, concurrency: int, seconds: float) -> dict[str, Any]:
    client = Client(server.url)
    run = Run(
        model=await first_model(client),
        seconds=seconds,
        concurrency=concurrency,
        extra={"temperature": 0.0, "ignore_eos": True},
    )
    queried, hit = await asyncio.to_thread(_prefix_lookups, server.url)
    async with Meter(server.pid) as meter:
        results = await Driver(client, load, Arrivals(), run).drive()
    found = await asyncio.to_thread(_prefix_lookups, server.url)
    client.close()
    report = results.report({})
    return {
        "tokens/s": report["output_tokens_per_second"],
        "CPU s per 1,000 tokens": meter.report(report["output_tokens"])["server_cpu_seconds_per_1000_tokens"],
        "TTFT median, ms": report["ttft"]["median"],
        "TTFT p99, ms": report["ttft"]["p99"],
        "ITL p99, ms": report["itl"]["p99"],
        "hits": round((found[1] - hit) / max(1.0, found[0] - queried), 4),
        "failed": report["failed"],
    }


def _prefix_lookups(url: str) -> tuple[float, float]:
    """Return the prompt tokens that a server has looked up in prefix caches, and those of them that it found.

    Both servers count them by the same names, one counter for each replica.
    """
    with urllib.request.urlopen(f"{url}/metrics", timeout=30) as answer:
        page = answer.read().decode()
    totals = [
        re.findall(rf"^\w+:prefix_cache_{what}_total(?:{{[^}}]*}})? (\S+)$", page, re.MULTILINE)
        for what in ("queries", "hits")
    ]
    queries, hits = (sum(map(float, found)) for found in totals)
    return queries, hits


def _medians(rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {column: round(statistics.median(row[column] for row in rows), 4) for column in COLUMNS}
