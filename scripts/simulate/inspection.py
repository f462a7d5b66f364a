"""Looks into a running engine: its schedulers and block managers, those of each replica."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from pageant.actors.blocks.stored import Transfer
from pageant.actors.runtime.cell import Cell
from pageant.actors.runtime.simulation import Simulation
from pageant.protocol.allocation import GetPoolStatistics, PoolStatistics
from pageant.protocol.errors import PageantError
from pageant.protocol.scheduling import GetSchedulerStatistics, SchedulerStatistics

ASK_SECONDS = 20.0
LOOK_SECONDS = 0.004
"""Time between two looks for a scheduler that is down, which is looked for after every callback otherwise."""


class Inspection:
    """Checks of an engine's invariants.

    Args:
        prefixes: those of all replicas that there may be; the empty one where the engine has none.
    """

    def __init__(self, prefixes: Sequence[str]) -> None:
        self._prefixes = prefixes
        self._schedulers: dict[str, Cell] = {}
        # The number of steps at the latest check of each.
        self._checked_at = dict.fromkeys(prefixes, -1)
        self._looked_at = -1.0
        # Since when schedulers have requests that their frontends do not know, by prefix and wire id.
        self._strays: dict[tuple[str, str], float] = {}
        # The most deaths of each executor that were seen; one that has left counts on.
        self._deaths: dict[str, int] = {}

    def schedulers(self, simulation: Simulation) -> Iterator[Cell]:
        """Yield the schedulers that are up."""
        for prefix in self._prefixes:
            cell = simulation.cell(f"{prefix}scheduler")
            if cell is not None:
                yield cell

    def requests(self, simulation: Simulation) -> Iterator[Any]:
        """Yield all requests that schedulers know."""
        for cell in self.schedulers(simulation):
            yield from cell.actor.core.requests  # type: ignore[attr-defined]

    def transfers(self, simulation: Simulation) -> Iterator[Transfer]:
        """Yield the copies of blocks to and from a store that are under way."""
        for prefix in self._prefixes:
            blocks: Any = simulation.cell(f"{prefix}blocks")
            allocation = getattr(getattr(blocks, "actor", None), "_allocation", None)
            if allocation is not None and allocation.stored_blocks is not None:
                yield from allocation.stored_blocks._transfers

    def is_fetching(self, simulation: Simulation, stores: Sequence[str]) -> bool:
        """Tell whether any of these stores fetches blocks from another."""
        actors = [cell.actor for name in stores if (cell := simulation.cell(name)) is not None]
        # Somebody's own store may fetch in another way.
        found = [getattr(actor, "_neighbours", None) for actor in actors]
        return any(one is not None and one.fetches.total() > 0 for one in found)

    def executor_deaths(self, simulation: Simulation) -> int:
        """Return how many executors have died until now."""
        for prefix in self._prefixes:
            name = f"{prefix}executor/0"
            entry = simulation.cluster.node.entry(name)
            seen = 0 if entry is None else entry.incarnation - entry.up
            self._deaths[name] = max(seen, self._deaths.get(name, 0))
        return sum(self._deaths.values())

    def check(self, simulation: Simulation) -> None:
        """Check each scheduler, and the block manager beside it, after every step."""
        self._look(simulation)
        for prefix, scheduler in self._schedulers.items():
            core: Any = scheduler.actor.core  # type: ignore[attr-defined]
            if scheduler.closed or core.counters.steps == self._checked_at[prefix]:
                continue
            self._checked_at[prefix] = core.counters.steps
            core.check_integrity()
            self._find_strays(simulation, prefix, core.requests)
            blocks: Any = simulation.cell(f"{prefix}blocks")
            allocation = getattr(blocks.actor, "_allocation", None) if blocks is not None else None
            if allocation is not None:  # another's block manager has what it likes
                allocation.check_integrity()

    @property
    def has_strays(self) -> bool:
        """Tell whether schedulers have requests that their frontends do not know."""
        return bool(self._strays)

    def strays(self, simulation: Simulation, latest: float) -> list[str]:
        """Return the requests that schedulers have still though frontends have not known them since `latest`."""
        found = []
        for prefix in self._prefixes:
            scheduler: Any = simulation.cell(f"{prefix}scheduler")
            there = [] if scheduler is None else [one.request_id for one in scheduler.actor.core.requests]
            found += [f"{prefix}{one}" for one in there if self._strays.get((prefix, one), latest) < latest]
        return found

    def _find_strays(self, simulation: Simulation, prefix: str, requests: Iterable[Any]) -> None:
        """Note which requests of a replica's scheduler their frontends do not know."""
        now, known = simulation.loop.time(), self._strays
        self._strays = {key: since for key, since in known.items() if key[0] != prefix}
        for one in requests:
            frontend: Any = simulation.cell(one.frontend)
            if frontend is not None and one.request_id not in frontend.actor._open:
                key = (prefix, one.request_id)
                self._strays[key] = known.get(key, now)

    def _look(self, simulation: Simulation) -> None:
        """Find the schedulers that have begun since."""
        now = simulation.loop.time()
        if now < self._looked_at + LOOK_SECONDS:
            return
        self._looked_at = now
        for prefix in self._prefixes:
            if (known := self._schedulers.get(prefix)) is None or known.closed:
                found = simulation.cell(f"{prefix}scheduler")
                if found is not None:
                    self._schedulers[prefix], self._checked_at[prefix] = found, -1

    async def count_left(self, simulation: Simulation) -> tuple[dict[str, int], Counter[str]]:
        """Return what is left of requests in all replicas that there are, and the counters of their schedulers."""
        left: dict[str, int] = {}
        counters: Counter[str] = Counter()
        there = [prefix for prefix in self._prefixes if simulation.cluster.node.entry(f"{prefix}scheduler")]
        if not there:
            return {"no scheduler": 1}, counters
        for prefix in there:
            counts, scheduler = await _left_at(simulation, prefix)
            left |= {f"{prefix}{name}": count for name, count in counts.items() if count}
            counters.update(scheduler)
        return left, counters


async def _left_at(simulation: Simulation, prefix: str) -> tuple[dict[str, int], dict[str, int]]:
    node = simulation.cluster.node
    try:
        scheduler: SchedulerStatistics = await node.ask(
            f"{prefix}scheduler", GetSchedulerStatistics(), ASK_SECONDS
        )
        pool: PoolStatistics = await node.ask(f"{prefix}blocks", GetPoolStatistics(), ASK_SECONDS)
    except PageantError as error:  # it died meanwhile
        return {repr(error): 1}, {}
    detokenizer: Any = simulation.cell(f"{prefix}detokenizer")
    counts = {
        "running": scheduler.num_running,
        "waiting": scheduler.num_waiting,
        "blocks held": pool.blocks_held,
        "open texts": len(detokenizer.actor._requests) if detokenizer is not None else 1,
    }
    return counts, dict(scheduler.counters)
