"""The store's shell: the memory, and messages around the index."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pageant.actors.runtime import ActorOptions, receives
from pageant.actors.runtime.sizes import parse_bytes
from pageant.actors.store.carrier import LINK, Region, carrier_class, frames_of
from pageant.actors.store.followers import Follower
from pageant.actors.store.index import NOWHERE, Owner, Place, StoreIndex
from pageant.actors.store.neighbours import Change
from pageant.actors.store.room import check_room
from pageant.actors.store.slabs import CHUNKS
from pageant.actors.store.spilling import Spilling, check_disk
from pageant.protocol.arena import Arena, joined, split
from pageant.protocol.arrays import int64
from pageant.protocol.errors import BadRequest
from pageant.protocol.roles import STORE
from pageant.protocol.storing import (
    ArenaRef,
    FollowStore,
    ForgetStored,
    GetStoreStatistics,
    Pin,
    Pinned,
    ReadStored,
    Reserve,
    Reserved,
    Settle,
    StoredBytes,
    StoreEvents,
    StoreStatistics,
)
from pageant.protocol.supervision import ActorDown, ActorUp

log = logging.getLogger("pageant.store")

MEMORY_MIN = 1 << 20
MEMORY_MAX = 1 << 50
GENERATIONS = 1 << 40
"""Generations of each life of a store: more than it reserves."""
FETCH_SECONDS = 5.0
"""The longest fetch, where whoever pins has named no patience."""


class Store(Spilling):
    """Keeps KV blocks for the block managers of its host; see `pageant.protocol.storing`."""

    role = STORE

    class Options(ActorOptions, frozen=True, kw_only=True):
        """Options of the store.

        Attributes:
            store_memory: bytes of the host's memory, such as `8GiB`. Pages are taken when blocks first come.
            memory: the same, for the entry of a store; None is `store_memory`.
            carrier: what brings blocks from stores of other hosts: `link` (the links that nodes have anyway), or
                `module:Class` of your own.
            disk: bytes of the disk, such as `100GiB`, for blocks that there is no room for in the memory.
            disk_path: the folder where they are kept, on the store's host.
            stores: the addresses of all stores of the topology. Filled in where there are several.
        """

        store_memory: str | int = "4GiB"
        memory: str | int | None = None
        carrier: str = LINK
        disk: str | int = 0
        disk_path: str | None = None
        stores: tuple[str, ...] = ()

        def __post_init__(self) -> None:
            # A carrier that cannot be imported is refused before anything starts.
            carrier_class(self.carrier, "actors.store.options.carrier")
            check_disk(self.disk, self.disk_path)
            name = "store_memory" if self.memory is None else "memory"
            found = getattr(self, name)
            try:
                wanted = parse_bytes(found)
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from None
            if not MEMORY_MIN <= wanted <= MEMORY_MAX:
                raise ValueError(f"{name} is {found!r}; expected a size such as 8GiB, of 1 MiB to 1 PiB")

        @property
        def num_bytes(self) -> int:
            """Return the bytes of the memory, in whole pages."""
            return parse_bytes(self.store_memory if self.memory is None else self.memory) // 4096 * 4096

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self._arena: Arena
        """The memory. Set by `on_start`, as `_index` is."""
        self._index: StoreIndex
        self._owners: set[Owner] = set()
        """Block managers and other stores that have reserved or pinned, and are not known to be gone."""
        self._watched: set[str] = set()
        """Names of all of them."""
        self._gone: dict[str, int] = {}
        """The latest incarnation of each of them that is known to be gone."""
        self._served = 0
        """Blocks pinned by other stores."""
        self._too_large: set[bytes] = set()
        """Kinds of blocks that are larger than any slot."""
        self._followers: dict[Follower, asyncio.Event] = {}
        self._settled = asyncio.Event()
        """Set, and replaced, whenever blocks were saved or are gone."""
        self._populated = 0
        """Bytes from the start of the memory whose pages were asked for."""
        self._is_populating = False

    async def on_start(self) -> None:
        """Take the memory.

        Raises:
            ConfigurationError: there is not so much, or there is no such folder for the disk.
        """
        self._arena = self._take_memory()
        first = self.incarnation * GENERATIONS
        self._index = StoreIndex(self._arena.num_bytes, self._arena.write_header, self._note, first)
        self._open_disk()
        self._open_carrier()
        for store in self.options.stores:
            self._watch(store)

    async def on_stop(self) -> None:
        self._carrier.close()

    def _take_memory(self) -> Arena:
        wanted = self.options.num_bytes
        check_room(wanted)
        return Arena.create(wanted)

    # Followers.

    @receives(concurrent=True)
    async def follow(self, request: FollowStore) -> AsyncIterator[StoreEvents]:
        """Stream the names of a kind, and then every one that comes or goes."""
        is_here = request.layout is not None
        follower, wake = Follower(request.kind, follows_away=is_here), asyncio.Event()
        here = self._index.names if is_here else self._kept
        self._followers[follower] = wake
        wake.set()
        if request.layout is not None:
            self._learn(request.layout)
        elif self._is_peer(self.sender):
            self._watch(self.sender)  # a host that came later
        arena = ArenaRef(path=self._arena.path, num_bytes=self._arena.num_bytes, epoch=self.incarnation)
        try:
            while True:
                await wake.wait()
                wake.clear()
                changes = follower.take(here, self._fetchable)
                yield StoreEvents(
                    arena=arena,
                    stored=joined(changes.came),
                    removed=joined(changes.went),
                    away=joined(changes.came_away),
                    not_away=joined(changes.went_away),
                    reset=changes.reset,
                    offer=self._carrier.offer(),
                )
        finally:
            del self._followers[follower]

    def _kept(self, kind: bytes) -> Iterator[bytes]:
        """Yield the names of all blocks of this store, in memory and on the disk."""
        yield from self._index.names(kind)
        yield from self._disk.names(kind)

    def _fetchable(self, kind: bytes) -> Iterator[bytes]:
        """Yield the names of all blocks that are to be had, but not at once."""
        yield from self._disk.names(kind)
        yield from self._neighbours.names(kind)

    def _note(self, name: bytes, kind: bytes, came: bool) -> None:
        is_kept = came or name in self._disk
        for follower in self._followers_of(kind):
            follower.note(name, came=came if follower.follows_away else is_kept)

    def _note_disk(self, name: bytes, kind: bytes, came: bool) -> None:
        if not came:
            self._generations.pop(name, None)
        is_kept, is_away = came or name in self._index, came or name in self._neighbours
        for follower in self._followers_of(kind):
            if follower.follows_away:
                follower.note(name, came=is_away, away=True)
            else:
                follower.note(name, came=is_kept)

    def _note_away(self, kind: bytes, changes: Sequence[Change]) -> None:
        for follower in self._followers_of(kind) if changes else ():
            for name, came in changes:
                follower.note(name, came=came or name in self._disk, away=True)

    def _followers_of(self, kind: bytes) -> Iterator[Follower]:
        """Yield the followers of a kind, and wake them."""
        for follower, wake in self._followers.items():
            if follower.kind == kind:
                wake.set()
                yield follower

    # Slots.

    @receives
    def reserve(self, request: Reserve) -> Reserved:
        """Return slots to save blocks in."""
        owner = self._owner()
        self._warn_of(request)
        places = [
            NOWHERE
            if owner is None or name in self._disk
            else self._index.reserve(name, request.kind, request.slot_bytes, owner)
            for name in split(request.names)
        ]
        self._populate_ahead()
        return Reserved(slots=_slots(places), generations=_generations(places))

    def _warn_of(self, request: Reserve) -> None:
        """Say once of each kind of blocks that they are too large for this store."""
        slabs = self._index.slabs
        if slabs.size_of(request.slot_bytes) is None and request.kind not in self._too_large:
            self._too_large.add(request.kind)
            log.warning(
                "the store keeps no blocks of %s: one takes %d bytes; expected at most %d, a part in %d of the "
                "store's memory. Give it at least %d MiB",
                *(self.sender, request.slot_bytes, slabs.chunk_bytes, CHUNKS),
                -(-request.slot_bytes * CHUNKS // 2**20) + 1,
            )

    @receives(concurrent=True)
    async def pin(self, request: Pin) -> Pinned:
        """Return slots of saved blocks, once none of them is still being written or fetched."""
        owner, names, began = self._owner(), split(request.names), self.clock.now()
        is_peer = self._is_peer(self.sender)
        patience = FETCH_SECONDS if request.patience is None else request.patience
        begun = self._begin_loads(names) if owner else []
        if request.kind and owner:
            begun += self._begin_fetches(request.kind, names, patience)
        self._populate_ahead()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(request.patience):
                while any(map(self._index.is_due, names)):
                    await self._settled.wait()
        if owner is None or self._is_gone(owner):
            places = [NOWHERE] * len(names)
        else:
            places = [self._index.pin(name, owner) for name in names]
        self._served += is_peer * sum(place != NOWHERE for place in places)
        # Nothing may have come in time: that is as long as one block took.
        came = max(1, len(begun) - sum(map(self._is_lacking, begun))) if begun else 0
        return Pinned(
            slots=_slots(places),
            generations=_generations(places),
            fetched=came,
            seconds=self.clock.now() - began if begun else 0.0,
        )

    def _is_lacking(self, name: bytes) -> bool:
        return name not in self._index or self._index.is_due(name)

    @receives(concurrent=True)
    async def read(self, request: ReadStored) -> AsyncIterator[StoredBytes]:
        """Stream regions of the memory, for the carrier of another host's store."""
        regions = [*map(Region, request.starts.tolist(), request.sizes.tolist())]
        last = self._arena.num_bytes
        if request.epoch != self.incarnation:
            raise BadRequest(f"found epoch {request.epoch}; expected {self.incarnation}", "epoch")
        if any(one.start < 0 or one.size < 0 or one.start + one.size > last for one in regions):
            raise BadRequest(
                f"found a region beyond the store's memory; expected them below {last}", "starts"
            )
        async for frame in frames_of(self, self._arena.bytes, regions):
            yield frame

    @receives
    def settle(self, message: Settle) -> None:
        """Take note of what became of slots."""
        owner = (self.sender, self.sender_incarnation)
        columns = zip(message.slots.tolist(), message.generations.tolist(), message.ok.tolist(), strict=True)
        for slot, generation, ok in columns:
            self._index.settle(Place(slot, generation), owner, ok=ok)
        self._wake_pinners()
        self._spill_ahead()

    @receives
    def forget(self, message: ForgetStored) -> None:
        """Forget all blocks of a kind."""
        self._index.forget(message.kind)
        self._disk.forget(message.kind)
        self._wake_pinners()

    def _wake_pinners(self) -> None:
        self._settled.set()
        self._settled = asyncio.Event()

    def _owner(self) -> Owner | None:
        """Return the block manager that asks; None if it is known to be gone."""
        owner = (self.sender, self.sender_incarnation)
        if self._is_gone(owner):
            return None
        self._watch(owner[0])
        self._owners.add(owner)
        return owner

    def _watch(self, name: str) -> None:
        if name not in self._watched and name != self.name:
            self._watched.add(name)
            self.watch(name)

    def _is_gone(self, owner: Owner) -> bool:
        return self._gone.get(owner[0], -1) >= owner[1]

    @receives
    def owner_up(self, event: ActorUp) -> None:
        """Follow another store. A block manager is known when it asks for something."""
        if self._is_peer(event.address):
            self._peer_up(event.address, event.incarnation)

    @receives
    def owner_down(self, event: ActorDown) -> None:
        """End what a block manager, or another store, has reserved and pinned."""
        if self._is_peer(event.address):
            self._peer_down(event.address, event.incarnation)
        self._gone[event.address] = max(event.incarnation, self._gone.get(event.address, -1))
        for owner in [one for one in self._owners if one[0] == event.address and self._is_gone(one)]:
            self._owners.discard(owner)
            self._index.owner_gone(owner)
        self._wake_pinners()

    # Memory.

    def _populate_ahead(self) -> None:
        """Have pages ready for the slots that come next, beside the loop."""
        slabs = self._index.slabs
        due = min(slabs.end + slabs.chunk_bytes, slabs.num_bytes)
        if due > self._populated and not self._is_populating:
            self._is_populating = True
            self.spawn(self._populate(due))

    async def _populate(self, end: int) -> None:
        await self.offload(self._arena.populate, self._populated, end)
        self._populated, self._is_populating = end, False

    # Looking in.

    @receives
    def statistics(self, request: GetStoreStatistics) -> StoreStatistics:
        """Return the state of the store. Checks its integrity first."""
        index = self._index
        index.check_integrity()
        self._disk.check_integrity()
        blocks, reserved, pinned, used = index.counts
        return StoreStatistics(
            num_bytes=self._arena.num_bytes,
            bytes_used=used,
            blocks=blocks,
            reserved=reserved,
            pinned=pinned,
            saved=index.saved - self._fetched - self._loaded,
            restored=index.restored,
            spoilt=index.spoilt,
            evictions=index.evictions,
            fetched=self._fetched,
            fetched_bytes=self._fetched_bytes,
            fetch_seconds=self._fetch_seconds,
            unfetched=self._unfetched,
            served=self._served,
            disk_bytes=0 if self._file is None else self._disk.slabs.num_bytes,
            disk_blocks=self._disk.counts[0],
            spilled=self._spilled,
            loaded=self._loaded,
            unloaded=self._unloaded,
            disk_evictions=self._disk.evictions,
        )


def _slots(places: Sequence[Place]) -> npt.NDArray[np.int64]:
    return int64([place.slot for place in places])


def _generations(places: Sequence[Place]) -> npt.NDArray[np.int64]:
    return int64([place.generation for place in places])
