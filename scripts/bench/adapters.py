"""`pageant bench adapters`: what low-rank adapters cost per step.

One engine, and the same requests in turn without an adapter, all with one, and with several side by side. The adapters
are made here, at random, for every linear map of the layers: the costliest there are of their rank.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import typer

from pageant.actors.client.engine import Engine
from pageant.protocol.sampling import SamplingParams
from pageant.scripts.bench.progress import rounds
from pageant.scripts.bench.workloads import random_ids
from pageant.scripts.engine_options import with_engine_options
from pageant.scripts.report import Json, publish
from pageant.scripts.samples.adapters import save_random_adapter


@with_engine_options
def bench(
    engine: dict[str, Any],
    rows: Annotated[int, typer.Option(help="Requests in each step.")] = 16,
    adapters: Annotated[int, typer.Option(help="That these are spread over.")] = 4,
    rank: Annotated[int, typer.Option(help="Of each adapter.")] = 16,
    prompt: Annotated[int, typer.Option(help="Tokens of each prompt.")] = 16,
    output: Annotated[int, typer.Option(help="Tokens of each answer.")] = 64,
    rounds: Annotated[int, typer.Option(help="Of all, in turn; the medians count.")] = 5,
    json: Json = None,
) -> None:
    """Decodes without an adapter, with one and with several, in turn: what they add to a step."""
    kinds = {"none": 0, "one": 1, "several": adapters}
    with tempfile.TemporaryDirectory() as folder:
        folders = {
            str(seed): save_random_adapter(Path(folder, str(seed)), Path(engine["model"]), rank, seed)
            for seed in range(adapters)
        }
        sizes = {"max_model_len": prompt + output, "max_num_seqs": rows, "adapters": folders}
        prompts = [random_ids(random.Random(0), prompt) for _ in range(rows)]
        seconds = asyncio.run(_measure({**sizes, **engine}, prompts, output, kinds, rounds))
    figures: dict[str, Any] = {"rows": rows, "adapters": adapters, "rank": rank, "output": output}
    figures |= {f"{kind}_ms": round(statistics.median(took) * 1e3, 2) for kind, took in seconds.items()}
    for kind in ("one", "several"):
        ratios = [took / bare for took, bare in zip(seconds[kind], seconds["none"], strict=True)]
        figures[f"{kind}_ratio"] = round(statistics.median(ratios), 3)
    lines = [
        f"{figures['none_ms']:.2f} ms per step of {rows} rows without an adapter",
        f"{figures['one_ms']:.2f} ms with one of rank {rank}: {figures['one_ratio']:.2f} times as much",
        f"{figures['several_ms']:.2f} ms with {adapters}: {figures['several_ratio']:.2f} times as much",
    ]
    publish(figures, lines, json)


async def _measure(
    engine: dict[str, Any], prompts: list[list[int]], output: int, kinds: dict[str, int], count: int
) -> dict[str, list[float]]:
    """Seconds of a step in each run, by kind. In each round they come in another order."""
    seconds: dict[str, list[float]] = {kind: [] for kind in kinds}
    async with Engine(**engine) as running:
        for kind in kinds:
            await _run(running, prompts, output, kinds[kind])  # warms up
        order = list(kinds)
        for _ in rounds("each kind", count):
            for kind in order:
                seconds[kind].append(await _run(running, prompts, output, kinds[kind]))
            order = [*order[1:], order[0]]
    return seconds


async def _run(engine: Engine, prompts: list[list[int]], output: int, num_adapters: int) -> float:
    """The median of the seconds between two tokens of a request, all prompts side by side, their adapters dealt out in
    turn. (Who else is on the machine holds up some steps, and so the whole of a run.)"""
    params = SamplingParams(temperature=0, max_tokens=output, ignore_eos=True)
    moments: list[float] = []

    async def read(prompt: list[int], adapter: str | None) -> None:
        async for _ in engine.generate(prompt, params, adapter=adapter):
            moments.append(time.perf_counter())

    names = [str(index % num_adapters) if num_adapters else None for index in range(len(prompts))]
    await asyncio.gather(
        read(prompts[0], names[0]),
        *(
            engine.complete(prompt, params, adapter=name)
            for prompt, name in zip(prompts[1:], names[1:], strict=True)
        ),
    )
    return statistics.median(after - before for before, after in pairwise(moments))
