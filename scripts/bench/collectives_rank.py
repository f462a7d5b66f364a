"""Rank of `pageant bench collectives`: times sums in its group, and prints its figures as JSON."""

from __future__ import annotations

import json
import os
import resource
import statistics
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import msgspec
import torch
from torch._C._distributed_c10d import FileStore

from pageant.kernels.collectives.base import Collectives
from pageant.kernels.collectives.process_group import ProcessGroup
from pageant.kernels.collectives.shared_memory import SharedMemory

__all__ = ["BATCHES", "RankPlan"]

BATCHES = 20
_BATCH_SECONDS = 0.02
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class RankPlan(msgspec.Struct, frozen=True):
    """Plan of what a rank does."""

    rank: int
    size: int
    address: str
    """Of the segment."""
    store: str
    """A file in which ranks of Gloo find one another."""
    shapes: tuple[tuple[int, int], ...]
    """Rows and columns of sums."""
    idle_seconds: float
    cores: tuple[int, ...] = ()
    """Cores to compute on; none is all."""
    batches: int = BATCHES
    """Batches of about 20 ms that each time is taken from."""


def main() -> None:
    """Run the plan of the command line."""
    plan = msgspec.json.decode(sys.argv[1], type=RankPlan)
    if plan.cores:
        os.sched_setaffinity(0, plan.cores)
    torch.set_num_threads(max(1, len(plan.cores)))
    found: dict[str, Any] = {}
    shared = SharedMemory(plan.address, plan.rank)
    found["shm"] = _sums(shared, plan)
    found["idle_share"] = _idle_share(shared, plan.idle_seconds)
    shared.close()
    store = FileStore(plan.store, plan.size)
    store.set_timeout(timedelta(seconds=30))
    gloo = ProcessGroup(store, "bench", plan.rank, plan.size)
    found["gloo"] = _sums(gloo, plan)
    gloo.barrier()
    gloo.close()
    found["memcpy"] = {_name(shape): _copy_seconds(shape) for shape in plan.shapes}
    print(json.dumps(found))


def _name(shape: tuple[int, int]) -> str:
    return f"{shape[0]}x{shape[1]}"


def _sums(group: Collectives, plan: RankPlan) -> dict[str, dict[str, dict[str, float]]]:
    """Return seconds of a sum by shape and dtype: the median and the least of some batches."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for shape in plan.shapes:
        parts = torch.ones(1, *shape)
        by_dtype = found[_name(shape)] = {}
        for name, dtype in _DTYPES.items():
            out = torch.empty(shape, dtype=dtype)

            def run(parts: torch.Tensor = parts, out: torch.Tensor = out) -> None:
                group.all_reduce(parts, out)

            by_dtype[name] = _timed(group, run, plan.batches)
            assert bool((out == plan.size).all()), "a wrong sum is not worth its time"
    return found


def _timed(group: Collectives, run: Callable[[], None], batches: int) -> dict[str, float]:
    """Time batches of as many calls on all ranks, which begin together."""
    began = time.perf_counter()
    for _ in range(5):
        run()
    count = torch.tensor(max(1, int(_BATCH_SECONDS / ((time.perf_counter() - began) / 5))))
    group.broadcast(count)
    calls, seconds = int(count), []
    for _ in range(batches):
        group.barrier()
        began = time.perf_counter()
        for _ in range(calls):
            run()
        seconds.append((time.perf_counter() - began) / calls)
    return {"median": statistics.median(seconds), "least": min(seconds)}


def _idle_share(group: Collectives, seconds: float) -> float:
    """Return the share of a core that a joined group takes while nobody calls it."""
    group.barrier()
    before = resource.getrusage(resource.RUSAGE_SELF)
    time.sleep(seconds)
    after = resource.getrusage(resource.RUSAGE_SELF)
    return (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) / seconds


def _copy_seconds(shape: tuple[int, int]) -> dict[str, float]:
    """Return seconds of a copy of as many float32 numbers by one thread."""
    source, target = torch.ones(shape), torch.empty(shape)
    seconds = []
    for _ in range(BATCHES):
        began = time.perf_counter()
        target.copy_(source)
        seconds.append(time.perf_counter() - began)
    return {"median": statistics.median(seconds), "least": min(seconds)}


if __name__ == "__main__":
    main()
