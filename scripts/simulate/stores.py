"""Store of a seed's engine, with memory that every simulated process can map, and what spoils that memory."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any, Literal

from pageant.actors.executor.simulated_arena import SimulatedArena, simulated_layout
from pageant.actors.runtime.simulation import Simulation
from pageant.actors.store.actor import Store
from pageant.actors.store.index import Slot, StoreIndex
from pageant.protocol.arena import HEADER, Arena
from pageant.protocol.block_names import NAME_BYTES
from pageant.protocol.errors import PageantError
from pageant.protocol.storing import GetStoreStatistics, StoreStatistics

STORE = "store"
SEEDS_WITH_STORE = {True: 3, False: 8}
"""One seed of so many has no store, where there are replicas; one of so many has a store, where there are none."""
ARENA_BYTES = (8_192, 16_384, 65_536, 262_144)
"""Bytes of a store: some hold a few blocks only."""
SPOILS = (0, 6)
CALM_SHARE = 0.5
MOMENT_SECONDS_MAX = 1.0
POLL_SECONDS = 0.001
ASK_SECONDS = 20.0
SLOT_BYTES = 8
"""Bytes of a token in the simulated KV memory."""
NOBODY = ("nobody", 1)
Kind = Literal["flip", "truncate", "reuse"]


class SimulatedStore(Store):
    """The real store over memory of the simulation."""

    class Options(Store.Options, frozen=True, kw_only=True):
        """Options of the store.

        Attributes:
            arena_bytes: its memory, which may hold a few blocks only.
            block_size, tensor_parallel, pipeline_parallel: of the executors, whose blocks it checks.
        """

        arena_bytes: int = ARENA_BYTES[-1]
        block_size: int = 16
        tensor_parallel: int = 1
        pipeline_parallel: int = 1

    def _take_memory(self) -> Arena:
        options = self.options
        arena = SimulatedArena.create(options.arena_bytes)
        members = options.tensor_parallel * options.pipeline_parallel
        arena.layout = simulated_layout(SLOT_BYTES * options.block_size, members)
        return arena


def draw_store(seed: int, *, is_replicated: bool) -> int:
    """Return the bytes of the store of a seed's engine; 0 where it has none."""
    random = Random(f"{seed} store")
    is_rare = random.randrange(SEEDS_WITH_STORE[is_replicated]) == 0
    return random.choice(ARENA_BYTES) if is_rare != is_replicated else 0


@dataclass(frozen=True)
class Spoil:
    """Damage to a store's memory, `at` so many seconds after the topology is up, once a slot is there to suffer it.

    Attributes:
        kind: `flip` a bit of a block, `truncate` it as a copy that ended early, or `reuse` its slot while somebody
            reads it, as a store does that takes the reader for dead.
    """

    at: float
    kind: Kind


def draw_spoils(random: Random, seconds: float) -> list[Spoil]:
    """Return what is spoilt within `seconds`, in its order; nothing in half of the runs."""
    if random.random() < CALM_SHARE:
        return []
    kinds: tuple[Kind, ...] = ("flip", "truncate", "reuse", "reuse")
    found = [
        Spoil(random.uniform(0.0, seconds), random.choice(kinds)) for _ in range(random.randint(*SPOILS))
    ]
    return sorted(found, key=lambda one: one.at)


class Spoiler:
    """Spoils blocks in the memory of a store, beneath everything that looks after it.

    Attributes:
        num_spoilt: how many blocks were spoilt.
    """

    def __init__(self, spoils: list[Spoil], random: Random) -> None:
        self._spoils, self._random = spoils, random
        self.num_spoilt = 0

    def begin(self, simulation: Simulation) -> None:
        """Spoil each block at its time."""
        now = simulation.loop.time()
        for spoil in self._spoils:
            latest = now + spoil.at + MOMENT_SECONDS_MAX
            simulation.loop.call_at(now + spoil.at, self._strike, simulation, spoil, latest)

    def _strike(self, simulation: Simulation, spoil: Spoil, latest: float) -> None:
        if simulation.loop.time() > latest:
            return
        store: Any = simulation.cell(STORE)
        index = getattr(getattr(store, "actor", None), "_index", None)
        if index is None or not self._spoil(index, store.actor._arena, spoil.kind):
            simulation.loop.call_later(POLL_SECONDS, self._strike, simulation, spoil, latest)
            return
        self.num_spoilt += 1
        simulation.trace.note(simulation.loop.time(), f"{spoil.kind} a block of the store")

    def _spoil(self, index: StoreIndex, arena: SimulatedArena, kind: Kind) -> bool:
        """Spoil a block, if there is one that suits."""
        ready = [slot for slot in index._slots.values() if slot.owner is None]
        pinned = [slot for slot in ready if slot.pins]
        suited = pinned if kind == "reuse" else pinned or ready
        if not suited:
            return False
        slot = self._random.choice(suited)
        start, end = slot.place.slot, slot.place.slot + slot.size
        match kind:
            case "flip":
                arena.bytes[self._random.randrange(start, end)] ^= 1 << self._random.randrange(8)
            case "truncate":
                arena.bytes[self._random.randrange(start + HEADER.itemsize, end) : end] = 0
            case "reuse":
                _reuse(index, arena, slot, self._random.choice(ready), self._random.randbytes(NAME_BYTES))
        return True


def _reuse(index: StoreIndex, arena: SimulatedArena, slot: Slot, other: Slot, name: bytes) -> None:
    """Give a slot that is being read to a block of this name, which looks like `other`."""
    inside = slice(HEADER.itemsize, slot.size)
    content = arena.bytes[other.place.slot :][inside].copy()
    index._drop(slot)
    place = index.reserve(name, slot.kind, slot.size, NOBODY)
    arena.bytes[place.slot :][inside] = content
    layout, arena.layout = arena.layout, None  # it is not whole, and is not meant to be
    index.settle(place, NOBODY, ok=True)
    arena.layout = layout


async def left_in_store(simulation: Simulation, *, is_calm: bool) -> tuple[dict[str, int], dict[str, int]]:
    """Return what is left in the store, now that nothing happens any more, and its counters.

    Args:
        is_calm: nothing went wrong, so that no block was found spoilt.
    """
    try:
        found: StoreStatistics = await simulation.cluster.node.ask(STORE, GetStoreStatistics(), ASK_SECONDS)
    except PageantError as error:  # it died meanwhile
        return {repr(error): 1}, {}
    left = {
        "reserved slots of the store": found.reserved,
        "pinned slots of the store": found.pinned,
        "blocks found spoilt though nothing spoilt them": found.spoilt if is_calm else 0,
    }
    counters = {name: getattr(found, name) for name in ("saved", "restored", "spoilt", "evictions")}
    return {what: count for what, count in left.items() if count}, {
        f"store: {name}": count for name, count in counters.items()
    }
