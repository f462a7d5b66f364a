"""Fetches between two stores that are as far apart as processes of one machine can be: by TCP on loopback.

Both stores, the links and the checks are those of a topology. What is timed is a `Pin`: blocks are pinned at the other
store, copied, checked, and ready to be restored.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from pageant.actors.runtime import Actor
from pageant.actors.runtime.cluster import Cluster
from pageant.actors.runtime.plans import ActorPlan
from pageant.actors.runtime.resolving import Cast, resolve
from pageant.actors.runtime.topology import parse
from pageant.actors.runtime.transport.keys import make_keys, write_keys
from pageant.protocol.arena import CHECKSUM_BYTES, HEADER, Arena, aligned, checksums, joined, split
from pageant.protocol.arrays import bools
from pageant.protocol.storing import (
    NO_SLOT,
    FollowStore,
    ForgetStored,
    Pin,
    Reserve,
    Settle,
    StoredLayout,
)
from pageant.scripts.bench.progress import rounds

SECONDS = 60.0
STORES = ("store/0", "store/1")
KIND = b"bench".ljust(16)


def layout_of(num_parts: int, part_bytes: int) -> StoredLayout:
    """Return the layout of blocks of so many parts."""
    parts_bytes = num_parts * part_bytes
    slot_bytes = aligned(aligned(HEADER.itemsize + num_parts * CHECKSUM_BYTES) + parts_bytes)
    return StoredLayout(
        kind=KIND, slot_bytes=slot_bytes, num_parts=num_parts, parts_bytes=parts_bytes, has_words=True
    )


class Filler(Actor):
    """Saves blocks in one store, and pins them in the other."""

    made: ClassVar[list[Filler]] = []

    async def on_start(self) -> None:
        Filler.made.append(self)

    async def fill(self, layout: StoredLayout, names: list[bytes]) -> None:
        """Save blocks in the first store."""
        arena = await self._arena(STORES[0], layout)
        request = Reserve(kind=KIND, names=joined(names), slot_bytes=layout.slot_bytes)
        reserved = await self.ask(STORES[0], request, SECONDS)
        for number, (slot, generation) in enumerate(
            zip(reserved.slots.tolist(), reserved.generations.tolist(), strict=True)
        ):
            assert slot != NO_SLOT, "the store is large enough"
            start = slot + HEADER.itemsize
            first = slot + aligned(HEADER.itemsize + layout.num_parts * CHECKSUM_BYTES)
            words = arena.words[first // 8 : (first + layout.parts_bytes) // 8]
            words[:] = number
            sums = checksums(words.reshape(layout.num_parts, -1), generation)
            arena.words[start // 8 : start // 8 + layout.num_parts] = sums
        ok = bools([True] * len(names))
        self.tell(STORES[0], Settle(slots=reserved.slots, generations=reserved.generations, ok=ok))

    async def _arena(self, store: str, layout: StoredLayout) -> Arena:
        async for events in self.stream(store, FollowStore(kind=KIND, layout=layout), SECONDS):
            return Arena.open(events.arena.path, events.arena.num_bytes)
        raise AssertionError("a store tells of its memory")

    async def learn(self, layout: StoredLayout, names: list[bytes]) -> None:
        """Return when the second store knows that the first has these blocks."""
        known: set[bytes] = set()
        async for events in self.stream(STORES[1], FollowStore(kind=KIND, layout=layout), SECONDS):
            known.update(split(events.away))
            if known.issuperset(names):
                return

    async def fetch(self, names: list[bytes]) -> float:
        """Return the seconds until blocks of the first store are in the second; forget them there."""
        began = time.perf_counter()
        pinned = await self.ask(STORES[1], Pin(names=joined(names), kind=KIND, patience=SECONDS), SECONDS)
        took = time.perf_counter() - began
        assert (pinned.slots != NO_SLOT).all(), "all blocks come"
        ok = bools([True] * len(names))
        self.tell(STORES[1], Settle(slots=pinned.slots, generations=pinned.generations, ok=ok))
        self.tell(STORES[1], ForgetStored(kind=KIND))
        return took


async def measure_fetches(blocks: int, count: int, num_parts: int, part_bytes: int) -> dict[str, Any]:
    """Return the speed of fetching blocks in the clear, and encrypted."""
    layout = layout_of(num_parts, part_bytes)
    with tempfile.TemporaryDirectory() as folder:
        keys = Path(folder, "pageant.key")
        write_keys(keys, make_keys())
        return {
            "bytes": blocks * layout.slot_bytes,
            "plain": await _measure(layout, blocks, count, None),
            "encrypted": await _measure(layout, blocks, count, keys),
        }


async def _measure(layout: StoredLayout, blocks: int, count: int, keys: Path | None) -> dict[str, float]:
    names = [number.to_bytes(16, "little") for number in range(blocks)]
    cluster = Cluster(_topology(blocks * layout.slot_bytes, layout.slot_bytes, keys))
    await cluster.start()
    try:
        async for _ in cluster.startup():
            pass
        filler = Filler.made.pop()
        await filler.fill(layout, names)
        await filler.learn(layout, names)
        await filler.fetch(names)  # pages of its memory come with their first use
        took = []
        for _ in rounds("fetches" if keys is None else "encrypted fetches", count):
            took.append(await filler.fetch(names))
    finally:
        await cluster.stop()
    seconds = statistics.median(took)
    return {
        "seconds": round(seconds, 4),
        "gb_per_second": round(blocks * layout.slot_bytes / seconds / 1e9, 3),
    }


def _topology(num_bytes: int, slot_bytes: int, keys: Path | None) -> Any:
    written: dict[str, Any] = {
        "placement": "one",
        "transport": "tcp",
        "nodes": {"front": {}, "here": {"process": True}, "there": {"process": True}},
    }
    if keys is not None:
        written |= {"keys": str(keys), "listen": "tcp://127.0.0.1:*"}
    resolved = resolve(parse(written), Cast({}, groups=frozenset(), root_actors=frozenset()))
    # A chunk, of which there are 16, has slots for whole blocks only.
    options = msgspec.json.encode({"memory": max(2 * num_bytes, 64 * slot_bytes), "stores": STORES})
    store, filler = "pageant.actors.store.actor:Store", f"{__name__}:Filler"
    actors = [
        *(
            ActorPlan(name, node, store, options)
            for name, node in zip(STORES, ("there", "here"), strict=True)
        ),
        ActorPlan("filler", "front", filler, b"{}"),
    ]
    return replace(resolved, actors=tuple(actors))
