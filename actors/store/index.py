"""The store's core: which slot holds which block, who writes and who reads it. No I/O, no clock.

Slots are of memory; or places in a file, which have no headers.

    reserved    one owner writes it; others may wait for it
    ready       it can be pinned; evicted when room is needed, the least recently used first, unless it is pinned

An owner is a block manager in one of its lives. What it has reserved and pinned ends with it.
"""

from __future__ import annotations

import heapq
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count, pairwise
from typing import NamedTuple

from pageant.actors.store.slabs import Slabs
from pageant.protocol.arena import SlotState
from pageant.protocol.storing import NO_SLOT

Owner = tuple[str, int]
"""Name and incarnation of a block manager."""
Listener = Callable[[bytes, bytes, bool], object]
HeaderWriter = Callable[[int, bytes, int, SlotState], object]


class Place(NamedTuple):
    """A slot in one of its generations."""

    slot: int
    generation: int


NOWHERE = Place(NO_SLOT, 0)


@dataclass(eq=False, slots=True)
class Slot:
    """A slot that holds a block, or is reserved for one."""

    name: bytes
    kind: bytes
    place: Place
    size: int
    owner: Owner | None
    """Who writes it; None once it is ready."""
    used: int = 0
    """When it was last used: a number that grows."""
    pins: Counter[Owner] = field(default_factory=Counter)


def _when_used(slot: Slot) -> int:
    return slot.used


class StoreIndex:
    """Slots of one arena.

    Args:
        write_header: called with slot, name, generation and state whenever these change.
        listener: called with name, kind, and whether the block came or went.
        first_generation: no earlier life of the store has had one so high.
    """

    def __init__(
        self, num_bytes: int, write_header: HeaderWriter, listener: Listener, first_generation: int = 1
    ) -> None:
        self.slabs = Slabs(num_bytes)
        self._write_header, self._listener = write_header, listener
        self._generation = first_generation
        # Slots by the name of their block: reserved and ready ones. Every name has at most one.
        self._slots: dict[bytes, Slot] = {}
        # The same slots, by their first byte.
        self._by_place: dict[int, Slot] = {}
        # Ready slots without pins, by size, the least recently used first.
        self._idle: dict[int, OrderedDict[bytes, Slot]] = {}
        # First bytes of the slots that each owner has reserved or pinned: its death ends exactly those.
        self._held: dict[Owner, set[int]] = {}
        self._uses = count(1)
        self.saved = self.restored = self.spoilt = self.evictions = 0

    def __contains__(self, name: bytes) -> bool:
        return name in self._slots

    def names(self, kind: bytes) -> Iterator[bytes]:
        """Yield the names of all blocks of a kind, reserved ones included."""
        return (name for name, slot in self._slots.items() if slot.kind == kind)

    # Writing.

    def reserve(self, name: bytes, kind: bytes, slot_bytes: int, owner: Owner) -> Place:
        """Return a slot for its owner to write; NOWHERE if the block is there already, or there is no room."""
        size = self.slabs.size_of(slot_bytes)
        if size is None:
            return NOWHERE
        if name in self._slots:
            self._touch(self._slots[name])
            return NOWHERE
        found = self.slabs.allocate(size)
        if found is None:
            found = self._evict(size)
        if found is None:
            return NOWHERE
        self._generation += 1
        slot = Slot(name, kind, Place(found, self._generation), size, owner)
        self._slots[name] = self._by_place[found] = slot
        self._held.setdefault(owner, set()).add(found)
        self._write_header(found, name, self._generation, SlotState.WRITING)
        self._listener(name, kind, True)
        return slot.place

    def _touch(self, slot: Slot) -> None:
        slot.used = next(self._uses)
        if slot.name in self._idle.get(slot.size, ()):
            self._idle[slot.size].move_to_end(slot.name)

    def _rest(self, slot: Slot) -> None:
        """Let a slot be evicted, after all others."""
        slot.used = next(self._uses)
        self._idle.setdefault(slot.size, OrderedDict())[slot.name] = slot

    def _evict(self, size: int) -> int | None:
        """Free the slot of the least recently used block. Of blocks of another size, its chunk is emptied."""
        eldest = sorted((next(iter(idle.values())) for idle in self._idle.values() if idle), key=_when_used)
        for slot in eldest:
            if slot.size == size:
                self.evictions += 1
                self._drop(slot)
                return self.slabs.allocate(size)
            if self._empty_chunk(self.slabs.chunk_of(slot.place.slot)):
                return self.slabs.allocate(size)
        return None

    def _empty_chunk(self, chunk: int) -> bool:
        """Drop the blocks of a chunk and take it back, if nobody writes or reads any of them. O(slots)."""
        inside = [one for one in self._by_place.values() if self.slabs.chunk_of(one.place.slot) == chunk]
        if any(one.owner is not None or one.pins for one in inside):
            return False
        self.evictions += len(inside)
        for one in inside:
            self._drop(one)
        self.slabs.reclaim(chunk)
        return True

    def _drop(self, slot: Slot) -> None:
        """Free a slot. Whoever still copies finds another header than before."""
        place = slot.place
        del self._slots[slot.name], self._by_place[place.slot]
        self._idle.get(slot.size, OrderedDict()).pop(slot.name, None)
        for holder in (*slot.pins, *((slot.owner,) if slot.owner is not None else ())):
            self._held.get(holder, set()).discard(place.slot)
        self._write_header(place.slot, slot.name, place.generation, SlotState.EMPTY)
        self.slabs.free(place.slot, slot.size)
        self._listener(slot.name, slot.kind, False)

    # Reading.

    def eldest(self) -> Iterator[Slot]:
        """Yield slots that may be evicted, the least recently used first. Nothing may change meanwhile."""
        return heapq.merge(*(idle.values() for idle in self._idle.values()), key=_when_used)

    def kind_of(self, name: bytes) -> bytes | None:
        """Return the kind of a ready block; None if there is none."""
        slot = self._slots.get(name)
        return None if slot is None or slot.owner is not None else slot.kind

    def is_due(self, name: bytes) -> bool:
        """Tell whether a block is still being written."""
        slot = self._slots.get(name)
        return slot is not None and slot.owner is not None

    def pin(self, name: bytes, owner: Owner) -> Place:
        """Return the slot of a ready block, which keeps it until it is settled; NOWHERE if there is none."""
        slot = self._slots.get(name)
        if slot is None or slot.owner is not None:
            return NOWHERE
        slot.pins[owner] += 1
        self._held.setdefault(owner, set()).add(slot.place.slot)
        self._idle[slot.size].pop(name, None)
        return slot.place

    def settle(self, place: Place, owner: Owner, *, ok: bool) -> bool:
        """Make a reserved slot ready, or release a pinned one. If it is not `ok`, the block is dropped.

        Nothing happens to a slot that its owner does not hold in that generation. Returns whether it held the slot.
        """
        slot = self._by_place.get(place.slot)
        if slot is None or slot.place != place:
            return False
        if slot.owner == owner:
            self._end_writing(slot, ok=ok)
            return True
        if slot.owner is None and slot.pins.get(owner):
            self._release(slot, owner)
            self.restored += ok
            if not ok:
                self._spoil(slot)
            return True
        return False

    def _end_writing(self, slot: Slot, *, ok: bool) -> None:
        if not ok:
            self._drop(slot)
            return
        owner, slot.owner = slot.owner, None
        assert owner is not None, "somebody wrote it"
        self._held[owner].discard(slot.place.slot)
        self._write_header(slot.place.slot, slot.name, slot.place.generation, SlotState.READY)
        self._rest(slot)
        self.saved += 1

    def _release(self, slot: Slot, owner: Owner) -> None:
        slot.pins[owner] -= 1
        if not slot.pins[owner]:
            del slot.pins[owner]
            self._held[owner].discard(slot.place.slot)
        if not slot.pins:
            self._rest(slot)

    def _spoil(self, slot: Slot) -> None:
        """Drop a block that is not whole. Others that read it find another header than before."""
        self.spoilt += 1
        self._drop(slot)

    # Coming and going.

    def owner_gone(self, owner: Owner) -> None:
        """End the reservations and pins of an owner."""
        for place in sorted(self._held.pop(owner, ())):
            slot = self._by_place[place]
            if slot.owner == owner:
                slot.owner = None
                self._drop(slot)
            elif slot.pins.pop(owner, 0) and not slot.pins:
                self._rest(slot)

    def forget(self, kind: bytes) -> int:
        """Drop all blocks of a kind, whoever reads or writes them. Return how many there were."""
        gone = [slot for slot in self._slots.values() if slot.kind == kind]
        for slot in gone:
            self._drop(slot)
        return len(gone)

    # Looking in.

    @property
    def counts(self) -> tuple[int, int, int, int]:
        """Return the numbers of ready blocks, reserved slots and pinned slots, and the bytes of all of them."""
        slots: Sequence[Slot] = tuple(self._slots.values())
        reserved = sum(slot.owner is not None for slot in slots)
        pinned = sum(bool(slot.pins) for slot in slots)
        return len(slots) - reserved, reserved, pinned, sum(slot.size for slot in slots)

    def check_integrity(self) -> None:
        """Assert the invariants. O(slots)."""
        assert {slot.place.slot for slot in self._slots.values()} == self._by_place.keys()
        ends = sorted((slot.place.slot, slot.place.slot + slot.size) for slot in self._slots.values())
        for (_, end), (start, _) in pairwise(ends):
            assert end <= start, "two blocks overlap"
        for slot in self._slots.values():
            idle = slot.name in self._idle.get(slot.size, {})
            assert idle == (slot.owner is None and not slot.pins), (
                "what is idle can be evicted, and nothing else"
            )
            holders = set(slot.pins) | ({slot.owner} if slot.owner is not None else set())
            for owner in holders:
                assert slot.place.slot in self._held[owner], "an owner's death frees what it holds"
