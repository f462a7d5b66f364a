"""Damage to the memory of stores: beneath everything that looks after it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Literal

from pageant.actors.executor.simulated_arena import SimulatedArena
from pageant.actors.runtime.simulation import Simulation
from pageant.actors.store.index import Slot, StoreIndex
from pageant.protocol.arena import HEADER
from pageant.protocol.block_names import NAME_BYTES

SPOILS = (0, 6)
CALM_SHARE = 0.5
MOMENT_SECONDS_MAX = 1.0
POLL_SECONDS = 0.001
NOBODY = ("nobody", 1)
Kind = Literal["flip", "truncate", "reuse"]


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
    """Spoils blocks in the memory of stores, each time of any of them.

    Attributes:
        num_spoilt: how many blocks were spoilt.
    """

    def __init__(self, stores: Sequence[str], spoils: list[Spoil], random: Random) -> None:
        self._stores, self._spoils, self._random = stores, spoils, random
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
        store: Any = simulation.cell(self._random.choice(self._stores))
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
