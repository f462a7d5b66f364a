"""`pageant bench collectives`: sums over ranks by shared memory and by Gloo, beside a copy of the same bytes.

Each rank is a process with a core of its own, if there are as many. A sum is of float32 parts, into float32 or
bfloat16. It moves (p - 1) / p of its bytes twice for p ranks, where a copy moves them once.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from pageant.kernels.collectives.segment import Segment
from pageant.scripts.bench.collectives_rank import BATCHES, RankPlan
from pageant.scripts.report import Json, publish, table

SHAPES = ((1, 1024), (16, 1024), (64, 1024), (512, 1024), (1024, 1024))
_PATIENCE_SECONDS = 120.0


def bench(
    ranks: Annotated[int, typer.Option(min=2, max=16, help="Processes that sum together.")] = 2,
    idle: Annotated[float, typer.Option(help="Seconds for which an idle group is watched.")] = 2.0,
    json: Json = None,
) -> None:
    """Sums over ranks by shared memory and by Gloo, beside memcpy."""
    found = measure(ranks, SHAPES, idle)
    publish(found, _lines(found), json)


def measure(
    ranks: int, shapes: tuple[tuple[int, int], ...], idle_seconds: float, batches: int = BATCHES
) -> dict[str, Any]:
    """Return the first rank's figures; seconds by implementation, shape and dtype, and the largest idle share."""
    available = sorted(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as folder, Segment(ranks) as segment:
        plans = [
            RankPlan(
                rank=rank,
                size=ranks,
                address=segment.address,
                store=str(Path(folder) / "store"),
                shapes=shapes,
                idle_seconds=idle_seconds,
                cores=(available[rank],) if ranks <= len(available) else (),
                batches=batches,
            )
            for rank in range(ranks)
        ]
        found = _run_all(plans)
    first, *_ = found
    return {
        "ranks": ranks,
        "cores": len(available),
        "seconds": {name: first[name] for name in ("shm", "gloo", "memcpy")},
        "idle_share": max(one["idle_share"] for one in found),
    }


def _run_all(plans: list[RankPlan]) -> list[dict[str, Any]]:
    """Run every rank in a process of its own; return what each prints. Raises RuntimeError for one that fails."""
    command = [sys.executable, "-m", "pageant.scripts.bench.collectives_rank"]
    started = [
        subprocess.Popen([*command, msgspec.json.encode(plan).decode()], stdout=subprocess.PIPE, text=True)
        for plan in plans
    ]
    try:
        said = [process.communicate(timeout=_PATIENCE_SECONDS)[0] for process in started]
    finally:
        for process in started:
            process.kill()
            process.wait()
    for plan, process in zip(plans, started, strict=True):
        if process.returncode:
            raise RuntimeError(f"rank {plan.rank} ended with {process.returncode}")
    return [json.loads(one) for one in said]


def _lines(found: dict[str, Any]) -> Iterator[str]:
    seconds = found["seconds"]
    rows = []
    for shape, copied in seconds["memcpy"].items():
        for dtype in ("float32", "bfloat16"):
            shm, gloo = (seconds[kind][shape][dtype]["median"] for kind in ("shm", "gloo"))
            copy = copied["median"]
            rows.append(
                [
                    f"{shape} to {dtype}",
                    *(f"{1e6 * one:.1f}" for one in (shm, gloo, copy)),
                    f"{copy / shm:.2f}",
                ]
            )
    yield f"{found['ranks']} ranks on {found['cores']} cores; medians in microseconds"
    yield from table(["sum", "shm", "gloo", "memcpy", "memcpy / shm"], rows)
    yield f"an idle rank takes {100 * found['idle_share']:.2f} % of a core"
