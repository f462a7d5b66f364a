"""The store's part that deals with other hosts: it follows what their stores have, and fetches what is pinned here.

A fetch reserves slots here, pins the blocks there, has the carrier copy whole slots, and checks each of them. It is
over when its patience is; whatever has not come by then is dropped, and is pinned nowhere.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from pageant.actors.runtime import Actor
from pageant.actors.runtime.address import role_of
from pageant.actors.store.adopting import Copied, adopt
from pageant.actors.store.carrier import Carrier, Peer, Region, carrier_class
from pageant.actors.store.index import NOWHERE, Owner, Place, StoreIndex
from pageant.actors.store.neighbours import Change, Neighbours
from pageant.protocol.arena import Arena, joined, split
from pageant.protocol.arrays import BoolVector, bools
from pageant.protocol.errors import PageantError
from pageant.protocol.roles import STORE
from pageant.protocol.storing import (
    NO_SLOT,
    FollowStore,
    Pin,
    Pinned,
    Settle,
    StoredLayout,
    StoreEvents,
)

log = logging.getLogger("pageant.store")

FOLLOW_SECONDS = 1e6
"""The longest wait for an event of another store, and for its answer: who dies is known sooner."""
AGAIN_SECONDS = 1.0
"""Pause before a store is followed again whose link broke."""
BATCH_BYTES = 16 << 20
"""Bytes of the slots that are fetched at once. Blocks of a batch that is there can be used."""
BATCH_MAX = 1024
COMPLAINTS_MAX = 16

Wanted = tuple[bytes, Place]
"""A block's name, and the slot that is reserved for it here."""


class Fetching(Actor):
    """Base of the store: stores of other hosts."""

    _arena: Arena
    _index: StoreIndex
    _carrier: Carrier

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self._neighbours = Neighbours()
        self._layouts: dict[bytes, StoredLayout] = {}
        """How blocks lie in a slot, by kind: those that block managers here have told."""
        self._peers: dict[str, int] = {}
        """Stores of other hosts that are up, and their incarnations."""
        self._lives: dict[str, Peer] = {}
        """The same, once they have said what they have."""
        self._complaints = 0
        self._fetched = self._fetched_bytes = self._unfetched = 0
        self._fetch_seconds = 0.0

    @property
    def _self(self) -> Owner:
        return self.name, self.incarnation

    def _open_carrier(self) -> None:
        self._carrier = carrier_class(self.options.carrier)(self, self._arena.bytes)

    def _note_away(self, kind: bytes, changes: Sequence[Change]) -> None:
        """Tell followers which blocks can be fetched."""
        raise NotImplementedError

    def _note(self, name: bytes, kind: bytes, came: bool) -> None:
        """Tell followers of a block that came or went."""
        raise NotImplementedError

    def _is_near(self, name: bytes) -> bool:
        """Tell whether a block can be had without another host."""
        return name in self._index

    def _wake_pinners(self) -> None:
        raise NotImplementedError

    # Following.

    def _peer_up(self, name: str, incarnation: int) -> None:
        self._peers[name] = incarnation
        for kind in self._layouts:
            self.spawn(self._follow_peer(name, incarnation, kind))

    def _peer_down(self, name: str, incarnation: int) -> None:
        if self._peers.get(name, incarnation) <= incarnation:
            self._peers.pop(name, None)
            self._lives.pop(name, None)

    def _learn(self, layout: StoredLayout) -> None:
        """Follow the blocks of a kind, wherever they are, if its layout says enough to check them."""
        if layout.num_parts and layout.kind not in self._layouts:
            self._layouts[layout.kind] = layout
            for name, incarnation in self._peers.items():
                self.spawn(self._follow_peer(name, incarnation, layout.kind))

    async def _follow_peer(self, name: str, incarnation: int, kind: bytes) -> None:
        while self._peers.get(name) == incarnation:
            try:
                async for events in self.stream(name, FollowStore(kind=kind), FOLLOW_SECONDS):
                    if self._peers.get(name) != incarnation:
                        break
                    self._take_events(name, kind, events)
            except PageantError as error:
                log.info("%s is not followed: %s", name, error)
            if self._peers.get(name, incarnation) == incarnation:
                # Otherwise its next life has told what it has by now.
                self._note_away(kind, self._neighbours.forget(name, kind))
            await asyncio.sleep(AGAIN_SECONDS)

    def _take_events(self, name: str, kind: bytes, events: StoreEvents) -> None:
        self._lives[name] = Peer(name, events.arena.epoch, events.offer)
        came, went = split(events.stored), split(events.removed)
        self._note_away(kind, self._neighbours.change(name, kind, came, went, reset=events.reset))

    # Fetching.

    def _begin_fetches(self, kind: bytes, names: Sequence[bytes], patience: float) -> list[bytes]:
        """Fetch those of these blocks that only other hosts have. Return their names."""
        layout = self._layouts.get(kind)
        if layout is None:
            return []
        absent = [name for name in names if not self._is_near(name)]
        until = asyncio.get_running_loop().time() + patience
        begun: list[bytes] = []
        for peer, some in self._neighbours.shares(kind, absent).items():
            wanted = list(self._reserve(layout, some))
            if wanted:
                self.spawn(self._fetch(peer, layout, wanted, until))
                begun += (name for name, _ in wanted)
        return begun

    def _reserve(self, layout: StoredLayout, names: Sequence[bytes]) -> Iterator[Wanted]:
        """Yield slots for the first blocks that there is room for."""
        for name in names:
            place = self._index.reserve(name, layout.kind, layout.slot_bytes, self._self)
            if place == NOWHERE:
                return
            yield name, place

    async def _fetch(self, peer: str, layout: StoredLayout, wanted: Sequence[Wanted], until: float) -> None:
        """Fetch blocks from a store, some after others; drop what has not come in time."""
        loop, began = asyncio.get_running_loop(), self.clock.now()
        self._neighbours.fetches[peer] += 1
        size = min(BATCH_MAX, max(1, BATCH_BYTES // layout.slot_bytes))
        left = list(wanted)
        try:
            while left and loop.time() < until and peer in self._lives:
                batch, left = left[:size], left[size:]
                ok = [False] * len(batch)
                try:
                    ok = await self._fetch_batch(self._lives[peer], layout, batch, until)
                finally:
                    self._end_batch(layout, batch, ok)
        finally:
            self._end_batch(layout, left, [False] * len(left))
            self._neighbours.fetches[peer] -= 1
            self._fetch_seconds += self.clock.now() - began

    def _end_batch(self, layout: StoredLayout, batch: Sequence[Wanted], ok: Sequence[bool]) -> None:
        pairs = zip(batch, ok, strict=True)
        came = sum([self._end_filling(layout.kind, wanted, ok=is_whole) for wanted, is_whole in pairs])
        self._fetched += came
        self._fetched_bytes += came * layout.slot_bytes
        self._unfetched += len(batch) - came
        self._wake_pinners()

    def _end_filling(self, kind: bytes, wanted: Wanted, *, ok: bool) -> bool:
        """End the reservation of a slot that this store has filled by itself. Return whether the block is there.

        It is not where it came whole and was forgotten meanwhile.
        """
        name, place = wanted
        is_here = self._index.settle(place, self._self, ok=ok) and ok
        if is_here:
            # Whoever had lost patience with it may look for it again.
            self._note(name, kind, True)
        return is_here

    async def _fetch_batch(
        self, peer: Peer, layout: StoredLayout, batch: Sequence[Wanted], until: float
    ) -> list[bool]:
        """Return which blocks have come whole."""
        loop = asyncio.get_running_loop()
        names = [name for name, _ in batch]
        request = Pin(names=joined(names), patience=max(0.0, until - loop.time()))
        try:
            # Its answer is waited for, come what may: what it pins is to be settled.
            pinned = await self.ask(peer.name, request, FOLLOW_SECONDS)
        except PageantError as error:
            self._complain(peer, error)
            return [False] * len(batch)
        there = np.flatnonzero(pinned.slots != NO_SLOT).tolist()
        found = [False] * len(batch)
        kept = bools([True] * len(there))
        try:
            whole = await self._pull(
                peer, layout, [batch[index] for index in there], _part(pinned, there), until
            )
            if whole is not None:
                kept = bools(whole)
                for index, is_whole in zip(there, whole, strict=True):
                    found[index] = is_whole
        finally:
            self._settle_there(peer, pinned, there, kept)
        for index in set(range(len(batch))) - set(there):
            self._note_away(layout.kind, self._neighbours.gone(peer.name, layout.kind, names[index]))
        return found

    def _settle_there(self, peer: Peer, pinned: Pinned, there: Sequence[int], ok: BoolVector) -> None:
        if there:
            part = _part(pinned, there)
            self.tell(peer.name, Settle(slots=part.slots, generations=part.generations, ok=ok))

    async def _pull(
        self, peer: Peer, layout: StoredLayout, batch: Sequence[Wanted], pinned: Pinned, until: float
    ) -> list[bool] | None:
        """Copy slots from a peer, and check them. Return which are whole; None if not all bytes came."""
        if not batch:
            return []
        size = layout.slot_bytes
        sources = [Region(slot, size) for slot in pinned.slots.tolist()]
        into = [Region(place.slot, size) for _, place in batch]
        try:
            async with asyncio.timeout_at(until):
                came = await self._carrier.pull(peer, sources, into)
        except Exception as error:  # a carrier may be anybody's
            self._complain(peer, error)
            return None
        if came != size * len(batch):
            self._complain(peer, f"{came} bytes came; expected {size * len(batch)}")
            return None
        copied = [
            Copied(name, generation, place)
            for (name, place), generation in zip(batch, pinned.generations.tolist(), strict=True)
        ]
        return await self.offload_beside("fetch", _adopt_all, self._arena, layout, copied)

    def _complain(self, peer: Peer, error: object) -> None:
        self._complaints += 1
        if self._complaints <= COMPLAINTS_MAX:
            reason = str(error) or type(error).__name__
            log.warning("blocks of %s are not fetched, and are computed instead: %s", peer.name, reason)

    def _is_peer(self, name: str) -> bool:
        return role_of(name) == STORE.name


def _part(pinned: Pinned, indices: Sequence[int]) -> Pinned:
    return Pinned(slots=pinned.slots[indices], generations=pinned.generations[indices])


def _adopt_all(arena: Arena, layout: StoredLayout, copied: Sequence[Copied]) -> list[bool]:
    return [adopt(arena, layout, one) for one in copied]
