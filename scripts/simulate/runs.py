"""Many seeds, in several processes."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from typing import TypeVar

from pageant.actors.runtime.parent_death import die_with_parent
from pageant.actors.runtime.simulation.faults import Fault
from pageant.actors.runtime.simulation.shrink import shrink
from pageant.scripts.simulate.engine import EngineSimulation

Item = TypeVar("Item")
Result = TypeVar("Result")

CHUNK = 8  # runs that a process is given at a time


@dataclass(frozen=True)
class Ran:
    """Outcome of a seed."""

    seed: int
    digest: str
    violation: str | None
    deliveries: int
    requests: int
    faults: Counter[str]  # that struck, by kind
    counters: Counter[str]


@dataclass
class Total:
    """Outcome of many seeds."""

    seeds: int = 0
    hostile: int = 0  # those in which something went wrong
    deliveries: int = 0
    requests: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    counters: Counter[str] = field(default_factory=Counter)
    failed: list[Ran] = field(default_factory=list)

    def add(self, ran: Ran) -> None:
        """One more."""
        self.seeds += 1
        self.hostile += ran.faults.total() > 0
        self.deliveries += ran.deliveries
        self.requests += ran.requests
        self.faults.update(ran.faults)
        self.counters.update(ran.counters)
        if ran.violation is not None:
            self.failed.append(ran)


def run_seed(seed: int, classes: Mapping[str, str] | None = None, *, replicas: bool = False) -> Ran:
    """One seed, here.

    Args:
        replicas: the engine is to have replicas, whether the seed says so or not.
    """
    simulation = EngineSimulation(seed, classes=classes, replicas=replicas)
    outcome = simulation.run()
    return Ran(
        seed=seed,
        digest=outcome.digest,
        violation=outcome.violation,
        deliveries=outcome.deliveries,
        requests=simulation.num_requests,
        faults=outcome.struck,
        counters=simulation.counters,
    )


def run_seeds(
    seeds: Iterable[int], jobs: int, classes: Mapping[str, str] | None = None, *, replicas: bool = False
) -> Iterator[Ran]:
    """Yield each seed's run, in order, as they are done; see `run_seed`."""
    return run_all(partial(run_seed, classes=classes, replicas=replicas), seeds, jobs)


def run_all(run: Callable[[Item], Result], items: Iterable[Item], jobs: int) -> Iterator[Result]:
    """Yield what `run` returns for each item, in order, as they are done in so many processes."""
    if jobs == 1:
        yield from map(run, items)
        return
    # A killed parent cannot end its pool: without the initializer the processes would stay for good.
    context, parent = get_context("spawn"), (os.getpid(),)
    with ProcessPoolExecutor(jobs, mp_context=context, initializer=die_with_parent, initargs=parent) as pool:
        yield from pool.map(run, items, chunksize=CHUNK)


def shorten(seed: int, classes: Mapping[str, str] | None = None, *, replicas: bool = False) -> list[Fault]:
    """The shortest schedule of faults that was found with which a failing seed still fails."""

    def fails(faults: Iterable[Fault]) -> bool:
        simulation = EngineSimulation(seed, faults=tuple(faults), classes=classes, replicas=replicas)
        return simulation.run().violation is not None

    drawn = EngineSimulation(seed, classes=classes, replicas=replicas).faults
    return shrink(drawn, fails)
