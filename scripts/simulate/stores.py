"""Stores of a seed's engine: one for each of its hosts, with memory that every simulated process can map."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from pageant.actors.executor.simulated_arena import SimulatedArena, simulated_layout
from pageant.actors.runtime.disk_file import DiskFile
from pageant.actors.runtime.simulation import Simulation
from pageant.actors.store.actor import Store
from pageant.protocol.arena import Arena
from pageant.protocol.errors import PageantError
from pageant.protocol.storing import GetStoreStatistics, StoreStatistics
from pageant.scripts.simulate.disks import SimulatedDisk

STORE = "store"
SEEDS_WITH_STORE = {True: 3, False: 8}
"""One seed of so many has no store, where there are replicas; one of so many has a store, where there are none."""
ARENA_BYTES = (8_192, 16_384, 65_536, 262_144)
"""Bytes of a store: some hold a few blocks only."""
DISK_BYTES = (0, 0, 16_384, 262_144)
HOSTS_SHARE = 0.6
"""Share of the seeds with several replicas and a store in which they are on two hosts, each with a store of its own."""
FAULTY_SHARES = (0.0, 0.0, 0.1, 0.5)
"""Of fetches, and of blocks that are read from a disk, those that go wrong."""
ASK_SECONDS = 20.0
COUNTED = (
    *("saved", "restored", "spoilt", "evictions"),
    *("fetched", "unfetched", "spilled", "loaded", "unloaded"),
)
SLOT_BYTES = 8
"""Bytes of a token in the simulated KV memory."""
CARRIER = "pageant.scripts.simulate.fetches:FaultyCarrier"


class SimulatedStore(Store):
    """The real store over memory and a disk of the simulation."""

    class Options(Store.Options, frozen=True, kw_only=True):
        """Options of the store.

        Attributes:
            arena_bytes, disk_bytes: its memory, which may hold a few blocks only, and its disk; 0 is none.
            faulty_share: of fetches, and of blocks that the disk reads, those that go wrong.
            block_size, tensor_parallel, pipeline_parallel: of the executors, whose blocks it checks.
        """

        arena_bytes: int = ARENA_BYTES[-1]
        disk_bytes: int = 0
        faulty_share: float = 0.0
        block_size: int = 16
        tensor_parallel: int = 1
        pipeline_parallel: int = 1

    def _take_memory(self) -> Arena:
        options = self.options
        arena = SimulatedArena.create(options.arena_bytes)
        members = options.tensor_parallel * options.pipeline_parallel
        arena.layout = simulated_layout(SLOT_BYTES * options.block_size, members)
        return arena

    def _take_disk(self) -> tuple[DiskFile | None, int]:
        wanted = self.options.disk_bytes
        return (SimulatedDisk(wanted, self.random, self.options.faulty_share) if wanted else None), wanted


@dataclass(frozen=True)
class DrawnStores:
    """Stores of a seed's engine.

    Attributes:
        names: of the actors, one for each host; empty where there is none.
        options: of all of them, and of who uses them.
    """

    names: tuple[str, ...]
    options: dict[str, Any]

    def of_replica(self, number: int) -> str:
        """Return the store of the host that a replica is on; replicas take turns."""
        return self.names[number % len(self.names)]


def draw_store(seed: int, *, is_replicated: bool) -> int:
    """Return the bytes of each store of a seed's engine; 0 where it has none."""
    random = Random(f"{seed} store")
    is_rare = random.randrange(SEEDS_WITH_STORE[is_replicated]) == 0
    return random.choice(ARENA_BYTES) if is_rare != is_replicated else 0


def draw_stores(seed: int, count: int) -> DrawnStores:
    """Return the stores of a seed's engine with `count` replicas; 0 is an engine without."""
    arena_bytes = draw_store(seed, is_replicated=count > 0)
    if not arena_bytes:
        return DrawnStores((), {})
    random = Random(f"{seed} hosts")
    has_two = random.random() < HOSTS_SHARE and count > 1
    names = (f"{STORE}/0", f"{STORE}/1") if has_two else (STORE,)
    faulty = random.choice(FAULTY_SHARES)
    options = {
        "store": names[0],
        "stores": names if has_two else (),
        "store_bytes": arena_bytes,
        "arena_bytes": arena_bytes,
        "disk_bytes": random.choice(DISK_BYTES),
        "faulty_share": faulty,
        "host_memory": 0,
        **({"carrier": CARRIER} if faulty else {}),
    }
    return DrawnStores(names, options)


async def left_in_stores(
    simulation: Simulation, stores: Sequence[str], *, is_calm: bool
) -> tuple[dict[str, int], dict[str, int]]:
    """Return what is left in the stores, now that nothing happens any more, and their counters.

    Args:
        is_calm: nothing went wrong, so that no block was found spoilt.
    """
    left: dict[str, int] = {}
    counters: dict[str, int] = {}
    for store in stores:
        try:
            asked = simulation.cluster.node.ask(store, GetStoreStatistics(), ASK_SECONDS)
            found: StoreStatistics = await asked
        except PageantError as error:  # it died meanwhile
            return {repr(error): 1}, {}
        is_faulty = _has_faults(simulation, store)
        left |= {
            f"{what} of {store}": count
            for what, count in _held_in(found, is_calm=is_calm and not is_faulty).items()
            if count
        }
        for name in COUNTED:
            counters[f"store: {name}"] = counters.get(f"store: {name}", 0) + getattr(found, name)
    left |= _misbeliefs(simulation, stores)
    return left, counters


def _has_faults(simulation: Simulation, store: str) -> bool:
    """Tell whether fetches and disks fail now and then."""
    cell = simulation.cell(store)
    return cell is not None and getattr(cell.actor.options, "faulty_share", 0.0) > 0


def _held_in(found: StoreStatistics, *, is_calm: bool) -> dict[str, int]:
    return {
        "reserved slots": found.reserved,
        "pinned slots": found.pinned,
        "blocks found spoilt though nothing spoilt them, those": found.spoilt if is_calm else 0,
    }


def _misbeliefs(simulation: Simulation, names: Sequence[str]) -> dict[str, int]:
    """Return how far stores are from what each other has, now that nothing happens any more."""
    stores: dict[str, Any] = {
        name: cell.actor for name in names if (cell := simulation.cell(name)) is not None
    }
    found: Counter[str] = Counter()
    for name, store in stores.items():
        found[f"fetches under way of {name}"] = store._neighbours.fetches.total()
        for kind in store._layouts:
            for other in stores.keys() - {name}:
                there = set(stores[other]._kept(kind))
                known = {one for one, held in store._neighbours._holders[kind].items() if other in held}
                found[f"blocks of {other} that {name} misses"] += len(there - known)
                found[f"blocks of {other} that only {name} knows"] += len(known - there)
    return {what: count for what, count in found.items() if count}
