"""Engines on two hosts with a store each, and stores with a disk: nothing wrong is fetched, and bugs are caught."""

from __future__ import annotations

from collections import Counter

import numpy as np

from pageant.actors.store import actor, carrier, fetching, spilling
from pageant.actors.store.fetching import Fetching
from pageant.actors.store.neighbours import Neighbours
from pageant.protocol.arena import CHECKSUM_BYTES, HEADER, SlotState, aligned, checksums, rebase
from pageant.scripts.simulate.disks import SimulatedDisk
from pageant.scripts.simulate.replicas import draw_count
from pageant.scripts.simulate.runs import run_seed
from pageant.scripts.simulate.stores import draw_stores

SEEDS_MAX = 200
SOME_SEEDS = 24
"""Enough for each kind of copy between stores and disks."""


def stores_of(seed):
    return draw_stores(seed, draw_count(seed, always=True))


def has_two(seed: int) -> bool:
    return len(stores_of(seed).names) == 2


def has_faults(seed: int) -> bool:
    """Tell whether fetches and disks of a seed fail now and then."""
    return stores_of(seed).options.get("faulty_share", 0) > 0


def has_disk(seed: int) -> bool:
    return stores_of(seed).options.get("disk_bytes", 0) > 0


def has_two_or_disk(seed: int) -> bool:
    return has_two(seed) or has_disk(seed)


def caught_by(*suits, first: int = 0) -> str:
    """Return the violation of the first seed from `first` on that suits and has one."""
    seeds = (seed for seed in range(first, SEEDS_MAX) if all(suit(seed) for suit in suits))
    found = (run_seed(seed, replicas=True).violation for seed in seeds)
    return next(violation for violation in found if violation is not None)


def test_blocks_are_fetched_and_written_to_disks_though_some_fail():
    counters: Counter[str] = Counter()
    for seed in filter(has_two_or_disk, range(SOME_SEEDS)):
        ran = run_seed(seed, replicas=True)
        assert ran.violation is None, f"seed {seed}: {ran.violation}"
        counters.update(ran.counters)
    for name in ("fetched", "unfetched", "spilled", "restored"):
        assert counters[f"store: {name}"] >= 1, name
    assert counters["store in fetching"] >= 1


# Bugs that are put in.


def take_in(arena, layout, copied) -> bool:
    """Take in whatever has come as what was asked for."""
    slot, generation = copied.place.slot, copied.place.generation
    first = slot + aligned(HEADER.itemsize + layout.num_parts * CHECKSUM_BYTES)
    words = arena.bytes[first : first + layout.parts_bytes].view(np.uint64).reshape(layout.num_parts, -1)
    at = (slot + HEADER.itemsize) // CHECKSUM_BYTES
    arena.words[at : at + layout.num_parts] = checksums(words, generation)
    arena.write_header(slot, copied.name, generation, SlotState.WRITING)
    return True


def test_a_block_that_is_fetched_and_taken_in_unseen(monkeypatch):
    monkeypatch.setattr(fetching, "adopt", take_in)
    assert "holds another's content" in caught_by(has_two, has_faults)


def test_a_block_that_is_read_from_a_disk_and_taken_in_unseen(monkeypatch):
    """Few blocks are read from disks, so every read goes wrong here."""
    begin = SimulatedDisk.__init__
    monkeypatch.setattr(
        SimulatedDisk, "__init__", lambda self, num_bytes, random, share: begin(self, num_bytes, random, 1.0)
    )
    monkeypatch.setattr(spilling, "adopt", take_in)
    assert "holds another's content" in caught_by(has_disk)


def test_a_store_that_answers_a_fetch_with_another_blocks_bytes(monkeypatch):
    """Header and checksums fit the name that was asked for, and so nobody but the tags can tell."""

    def frames(store, memory, regions):
        memory, slots = memory.copy(), store._index._by_place
        for start, size in regions:
            asked = slots[start]
            other = next(one for one in slots.values() if one.owner is None and one.size == asked.size)
            inside = slice(HEADER.itemsize, size)
            memory[start:][inside] = memory[other.place.slot :][inside]
            count = store._layouts[other.kind].num_parts
            sums = memory.view(np.uint64)[(start + HEADER.itemsize) // CHECKSUM_BYTES :][:count]
            rebase(sums, other.place.generation, asked.place.generation)
        return carrier.frames_of(store, memory, regions)

    monkeypatch.setattr(actor, "frames_of", frames)
    assert "holds another's content" in caught_by(has_two)


def test_a_block_that_is_pinned_for_a_fetch_for_good(monkeypatch):
    monkeypatch.setattr(Fetching, "_settle_there", lambda *args: None)
    assert "pinned slots of store/" in caught_by(has_two)


def test_room_for_what_does_not_come_that_stays_taken(monkeypatch):
    end = Fetching._end_batch

    def kept(self, layout, batch, ok):
        end(
            self, layout, [one for one, is_whole in zip(batch, ok, strict=True) if is_whole], [True] * sum(ok)
        )

    monkeypatch.setattr(Fetching, "_end_batch", kept)
    assert "reserved slots of store/" in caught_by(has_two, has_faults)


def test_blocks_of_a_store_that_died_which_another_goes_on_to_know(monkeypatch):
    monkeypatch.setattr(Neighbours, "forget", lambda self, peer, kind: [])
    assert "that only store/" in caught_by(has_two)
