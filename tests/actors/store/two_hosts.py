"""Two stores as of two hosts, in processes of their own or in one, and who saves and restores blocks there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from hashlib import blake2b
from typing import Any

import msgspec
import numpy as np

from pageant.actors.executor.tiers.stored_memory import HostBlocks, SlotLayout, StoredMemory
from pageant.actors.runtime import Actor
from pageant.actors.runtime.cluster import Cluster
from pageant.actors.runtime.plans import ActorPlan
from pageant.actors.runtime.resolving import Cast, resolve
from pageant.actors.runtime.topology import parse
from pageant.actors.store.carrier import Carrier, LinkCarrier
from pageant.protocol.arena import joined, split
from pageant.protocol.arrays import bools, int32, int64
from pageant.protocol.storing import (
    NO_SLOT,
    ArenaRef,
    FollowStore,
    GetStoreStatistics,
    MoveStored,
    Pin,
    Pinned,
    Reserve,
    Settle,
    StoredLayout,
    StoreEvents,
    StoreStatistics,
)

SECONDS = 10.0
PART, LAYERS = 4096, 4
KIND, OTHER_KIND = b"float32".ljust(16), b"bfloat16".ljust(16)
LAYOUT = SlotLayout.of([(2, PART)] * 2 * LAYERS)
MANAGERS: dict[str, Manager] = {}


def name_of(number: int) -> bytes:
    return number.to_bytes(16, "little")


def content(name: bytes) -> np.ndarray:
    """What a block holds, uint8 [caches, 2 * PART]: it says whose it is."""
    seed = int.from_bytes(blake2b(name, digest_size=8).digest(), "little")
    return np.random.default_rng(seed).integers(0, 256, (2 * LAYERS, 2 * PART), np.uint8)


def stored_layout(kind: bytes) -> StoredLayout:
    return StoredLayout(
        kind=kind,
        slot_bytes=LAYOUT.slot_bytes,
        num_parts=LAYOUT.num_parts,
        parts_bytes=LAYOUT.parts_bytes,
        has_words=LAYOUT.has_words,
    )


class Manager(Actor):
    """A block manager and an executor of a host, who do what a test says. Lives in the test's own process."""

    class Options(Actor.Options, frozen=True, kw_only=True):
        store: str = ""
        kind: bytes = KIND

    async def on_start(self) -> None:
        MANAGERS[self.name] = self
        self.here: set[bytes] = set()
        self.away: set[bytes] = set()
        self.arena: ArenaRef | None = None
        self.changed = asyncio.Event()
        self.caches = [np.zeros((1, 2 * PART), np.uint8) for _ in range(2 * LAYERS)]
        self.memory = StoredMemory(HostBlocks(self.caches), LAYOUT)
        self.spawn(self._follow())

    async def _follow(self) -> None:
        request = FollowStore(kind=self.options.kind, layout=stored_layout(self.options.kind))
        while True:
            try:
                async for events in self.stream(self.options.store, request, 1e6):
                    self._take(events)
            except Exception:
                self.here, self.away = set(), set()
                await asyncio.sleep(0.01)

    def _take(self, events: StoreEvents) -> None:
        if events.reset:
            self.here, self.away = set(), set()
        self.arena = events.arena
        self.here = self.here - {*split(events.removed)} | {*split(events.stored)}
        self.away = self.away - {*split(events.not_away)} | {*split(events.away)}
        self.changed.set()

    async def until(self, holds) -> None:
        async with asyncio.timeout(SECONDS):
            while not holds():
                self.changed.clear()
                await self.changed.wait()

    def _move(self, way: str, name: bytes, slot: int, generation: int) -> bool:
        request = MoveStored(
            way=way,
            epoch=1,
            arena=self.arena,
            blocks=int32([0]),
            names=joined([name]),
            slots=int64([slot]),
            generations=int64([generation]),
            scheduler=1,
            step=0,
        )
        return bool(self.memory.move(request)[0])

    async def save(self, names: Sequence[bytes]) -> None:
        await self.until(lambda: self.arena is not None)
        request = Reserve(kind=self.options.kind, names=joined(list(names)), slot_bytes=LAYOUT.slot_bytes)
        found = await self.ask(self.options.store, request, SECONDS)
        for name, slot, generation in zip(
            names, found.slots.tolist(), found.generations.tolist(), strict=True
        ):
            if slot != NO_SLOT:
                for cache, part in zip(self.caches, content(name), strict=True):
                    cache[0] = part
                ok = self._move("save", name, slot, generation)
                self._settle(slot, generation, ok=ok)

    def _settle(self, slot: int, generation: int, *, ok: bool) -> None:
        message = Settle(slots=int64([slot]), generations=int64([generation]), ok=bools([ok]))
        self.tell(self.options.store, message)

    async def restore(self, names: Sequence[bytes], patience: float = SECONDS) -> list[bool]:
        """Return which blocks were found; asserts that each holds what its name says."""
        request = Pin(names=joined(list(names)), kind=self.options.kind, patience=patience)
        pinned: Pinned = await self.ask(self.options.store, request, SECONDS)
        found = []
        for name, slot, generation in zip(
            names, pinned.slots.tolist(), pinned.generations.tolist(), strict=True
        ):
            ok = slot != NO_SLOT and self._move("restore", name, slot, generation)
            if slot != NO_SLOT:
                self._settle(slot, generation, ok=ok)
            if ok:
                assert (np.stack([cache[0] for cache in self.caches]) == content(name)).all()
            found.append(ok)
        return found

    async def at_rest(self) -> StoreStatistics:
        """Return the store's statistics once nothing is reserved or pinned."""
        async with asyncio.timeout(SECONDS):
            while True:
                found = await self.ask(self.options.store, GetStoreStatistics(), SECONDS)
                if not (found.reserved or found.pinned):
                    return found
                await asyncio.sleep(0)


class Short(LinkCarrier):
    """Leaves the last bytes out, and says so."""

    async def pull(self, peer, sources, into) -> int:
        shorter = [one._replace(size=one.size - 100) for one in sources]
        return await super().pull(peer, shorter, [one._replace(size=one.size - 100) for one in into])


class Liar(Short):
    """Says that all bytes came."""

    async def pull(self, peer, sources, into) -> int:
        await super().pull(peer, sources, into)
        return sum(one.size for one in into)


class Mixed(LinkCarrier):
    """Brings other blocks than those asked for: as of slots that were given to others meanwhile."""

    async def pull(self, peer, sources, into) -> int:
        return await super().pull(peer, sources[1:] + sources[:1], into)


class Flipped(LinkCarrier):
    """Spoils a byte in the middle of each slot."""

    async def pull(self, peer, sources, into) -> int:
        came = await super().pull(peer, sources, into)
        for region in into:
            self.memory[region.start + region.size // 2] ^= 1
        return came


class Broken(Carrier):
    """Raises an error of its own."""

    async def pull(self, peer, sources, into) -> int:
        raise ZeroDivisionError("no such device")


class Stuck(Carrier):
    """Never comes back."""

    async def pull(self, peer, sources, into) -> int:
        await asyncio.Event().wait()
        raise AssertionError


@asynccontextmanager
async def two_hosts(
    options: dict[str, Any] | None = None,
    *,
    apart: bool = False,
    kinds: tuple[bytes, bytes] = (KIND, KIND),
    memory: tuple[str, str] = ("16MiB", "16MiB"),
) -> AsyncIterator[tuple[Cluster, Manager, Manager]]:
    """Yield the cluster and the managers of both hosts. With `apart`, stores talk by tcp on loopback."""
    transport = {"transport": "tcp"} if apart else {}
    nodes = {"front": {}, "a": {"process": apart}, "b": {"process": apart}} if apart else {"front": {}}
    topology = {"placement": "one", "wire": "always", **transport, "nodes": nodes}
    resolved = resolve(parse(topology), Cast({}, groups=frozenset(), root_actors=frozenset()))
    stores = {"stores": ("store/0", "store/1"), **(options or {})}
    plans = []
    for index, kind in enumerate(kinds):
        home, store = "ab"[index] if apart else "front", f"store/{index}"
        cls = "pageant.actors.store.actor:Store"
        own = msgspec.json.encode({**stores, "memory": memory[index]})
        plans.append(ActorPlan(store, home, cls, own, None, bound=""))
        given = msgspec.json.encode({"store": store, "kind": kind})
        cls = "tests.actors.store.two_hosts:Manager"
        plans.append(ActorPlan(f"manager-{index}", "front", cls, given, None, bound=""))
    cluster = Cluster(replace(resolved, actors=tuple(plans)))
    await cluster.start()
    try:
        async for _ in cluster.startup():
            pass
        yield cluster, MANAGERS["manager-0"], MANAGERS["manager-1"]
    finally:
        await cluster.stop()
