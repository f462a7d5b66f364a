"""Whatever happens in a store between the beginning and the end of a copy, no block is used that is not whole."""

from __future__ import annotations

import random
from collections import Counter
from hashlib import blake2b

import numpy as np

from pageant.actors.blocks.stored import stored_name
from pageant.actors.executor.tiers.stored_memory import HostBlocks, LayoutShare, SlotLayout, StoredMemory
from pageant.actors.store.index import NOWHERE, Place, StoreIndex
from pageant.protocol.arena import Arena, SlotState, joined
from pageant.protocol.arrays import int32, int64
from pageant.protocol.storing import ArenaRef, MoveStored

INTERLEAVINGS = 10_000
BLOCKS, NAMES, PART = 4, 12, 32
HEADS, LAYERS = 2, 2
KINDS = (b"bfloat16".ljust(16), b"float32".ljust(16))
GENERATIONS = 1 << 40


class Interrupted(HostBlocks):
    """Blocks of a device that have something else happen while they are copied."""

    def __init__(self, caches) -> None:
        super().__init__(caches)
        self.interrupt = lambda: None

    def read(self, blocks):
        for addresses in super().read(blocks):
            self.interrupt()
            yield addresses

    def place(self, block):
        self.interrupt()
        return super().place(block)


class Host:
    """A store of one host, and the executors of two replicas with two ranks each."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.seen: Counter[str] = Counter()
        self.epoch = 0
        self.lives = [1, 1]
        self.held: list[tuple[str, int, int, bytes, bytes, Place]] = []
        self.caches = [[self.memory() for _ in range(2)] for _ in range(2)]
        self.blocks = [[Interrupted(caches) for caches in ranks] for ranks in self.caches]
        share = [LayoutShare(rank=rank, num_heads=HEADS, num_ranks=2) for rank in range(2)]
        layouts = [SlotLayout.of([(1, PART)] * 2 * LAYERS, part) for part in share]
        self.memories = [
            [StoredMemory(*pair) for pair in zip(ranks, layouts, strict=True)] for ranks in self.blocks
        ]
        self.slot_bytes = layouts[0].slot_bytes
        self.restart()

    def memory(self):
        return [np.zeros((BLOCKS, PART), np.uint8) for _ in range(2 * LAYERS)]

    def content(self, kind: bytes, name: bytes, rank: int) -> np.ndarray:
        """What a rank has of a block, uint8 [caches, PART]: it says whose it is."""
        data = b"".join(
            blake2b(kind + name + bytes([rank, cache])).digest()[:PART] for cache in range(2 * LAYERS)
        )
        return np.frombuffer(data, np.uint8).reshape(-1, PART)

    def restart(self) -> None:
        """Another life of the store, with memory of its own. The copies under way go on in the old one."""
        self.epoch += 1
        self.arena = Arena.create(16 * 4096)
        self.index = StoreIndex(
            self.arena.num_bytes, self.arena.write_header, lambda *_: None, self.epoch * GENERATIONS
        )
        self.ref = ArenaRef(path=self.arena.path, num_bytes=self.arena.num_bytes, epoch=self.epoch)

    def owner(self, replica: int):
        return (f"replica-{replica}/blocks", self.lives[replica])

    def any_name(self) -> tuple[bytes, bytes]:
        return self.random.choice(KINDS), self.random.randrange(NAMES).to_bytes(16, "little")

    # What may happen, also in the middle of a copy.

    def happen(self) -> None:
        what = self.random.choices(range(7), (3, 6, 1, 1, 4, 20, 65))[0]
        if what == 0:
            replica = self.random.randrange(2)
            self.index.owner_gone(self.owner(replica))
            self.lives[replica] += 1
        elif what == 1:
            slot = next(iter(self.index._by_place.values()), None)
            if slot is not None:
                at = slot.place.slot + self.random.randrange(slot.size)
                self.arena.bytes[at] ^= 1 << self.random.randrange(8)
        elif what == 2:
            self.restart()
        elif what == 3:
            self.index.forget(self.random.choice(KINDS))
        elif what == 4:
            slot = next(iter(self.index._by_place.values()), None)
            if slot is not None:
                end = slot.place.slot + slot.size
                self.arena.bytes[end - self.random.randrange(slot.size) : end] = 0  # the end never came
        elif what == 5:
            self.reserve_only()
        else:
            return
        self.seen[f"event {what}"] += 1

    def reserve_only(self) -> None:
        """Give slots to somebody who begins to write."""
        kind, name = self.any_name()
        replica = self.random.randrange(2)
        place = self.index.reserve(stored_name(kind, name), kind, self.slot_bytes, self.owner(replica))
        if place != NOWHERE:
            self.held.append(("save", replica, self.lives[replica], kind, name, place))

    def move(
        self, way, replica: int, kind: bytes, name: bytes, place: Place, block: int, *, interrupted=True
    ) -> bool:
        request = MoveStored(
            way=way,
            epoch=1,
            arena=self.ref,
            blocks=int32([block]),
            names=joined([stored_name(kind, name)]),
            slots=int64([place.slot]),
            generations=int64([place.generation]),
            scheduler=1,
            step=0,
        )
        for blocks in self.blocks[replica]:
            blocks.interrupt = self.happen if interrupted else lambda: None
        return all([memory.move(request)[0] for memory in self.memories[replica]])

    def save(self, held) -> None:
        _, replica, life, kind, name, place = held
        block = self.random.randrange(BLOCKS)
        for rank, caches in enumerate(self.caches[replica]):
            for cache, part in zip(caches, self.content(kind, name, rank), strict=True):
                cache[block] = part
        ok = self.move("save", replica, kind, name, place, block)
        if self.random.random() < 0.9:
            self.index.settle(place, (f"replica-{replica}/blocks", life), ok=ok)
            self.seen[f"saved {ok}"] += 1

    def restore(self) -> None:
        kind, name = self.any_name()
        replica = self.random.randrange(2)
        owner = self.owner(replica)
        place = self.index.pin(stored_name(kind, name), owner)
        if place == NOWHERE:
            return
        block = self.random.randrange(BLOCKS)
        for caches in self.caches[replica]:
            for cache in caches:
                cache[block] = 0
        ok = self.move("restore", replica, kind, name, place, block)
        self.index.settle(place, owner, ok=ok)
        self.seen[f"restored {ok}"] += 1
        if ok:
            for rank, caches in enumerate(self.caches[replica]):
                found = np.stack([cache[block] for cache in caches])
                assert (found == self.content(kind, name, rank)).all(), (
                    "a block was used that is not its name's"
                )

    def play(self) -> None:
        """One interleaving: someone reserves, copies that were begun end, and someone reads."""
        self.reserve_only()
        while self.held and self.random.random() < 0.6:
            self.save(self.held.pop(self.random.randrange(len(self.held))))
        self.restore()
        self.happen()


def test_no_block_is_used_that_is_not_whole():
    host = Host(seed=11)
    for turn in range(INTERLEAVINGS):
        host.play()
        if turn % 500 == 0:
            host.index.check_integrity()
    seen = host.seen
    assert (
        min(seen["restored True"], seen["restored False"], seen["saved True"], seen["saved False"]) > 100
    ), seen
    assert all(seen[f"event {what}"] > 50 for what in range(6)), seen
    for replica in range(2):
        host.index.owner_gone(host.owner(replica))
    assert host.index.counts[1:3] == (0, 0), "nothing is reserved or pinned at rest"


def test_a_slot_of_a_former_life_of_the_writer_never_passes_for_its_successor():
    """The writer of an earlier generation ends last, checksums and all."""
    host = Host(seed=1)
    kind, late, new = KINDS[0], (1).to_bytes(16, "little"), (2).to_bytes(16, "little")
    memory = host.memories[0][0]
    own = StoreIndex(host.arena.num_bytes, host.arena.write_header, lambda *_: None)
    old_place = own.reserve(stored_name(kind, late), kind, host.slot_bytes, ("a", 1))
    parts = host.content(kind, late, 0)
    own.owner_gone(("a", 1))
    place = own.reserve(stored_name(kind, new), kind, host.slot_bytes, ("b", 1))
    assert place.slot == old_place.slot
    for cache, part in zip(host.caches[0][0], parts, strict=True):
        cache[0] = part
    # Both headers are as the late writer saw them; what it writes lies under the new name in the end.
    host.arena.write_header(place.slot, stored_name(kind, late), old_place.generation, SlotState.WRITING)
    assert host.move("save", 0, kind, late, old_place, 0, interrupted=False)
    host.arena.write_header(place.slot, stored_name(kind, new), place.generation, SlotState.READY)
    request = MoveStored(
        way="restore",
        epoch=1,
        arena=host.ref,
        blocks=int32([1]),
        names=joined([stored_name(kind, new)]),
        slots=int64([place.slot]),
        generations=int64([place.generation]),
        scheduler=1,
        step=0,
    )
    assert not memory.move(request)[0]
