"""The block manager's part that deals with a store: it follows what is there, and has blocks saved and restored."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from pageant.actors.blocks.allocation import Allocation
from pageant.actors.blocks.costs import Move, MoveCosts
from pageant.actors.blocks.stored import Arrival, Mirror, StoredBlocks, Transfer
from pageant.actors.runtime import Actor
from pageant.protocol.arena import joined, split
from pageant.protocol.arrays import BoolVector, bools, int32, int64
from pageant.protocol.errors import PageantError
from pageant.protocol.stepping import ExecutorReady
from pageant.protocol.storing import (
    NO_SLOT,
    ArenaRef,
    FollowStore,
    ForgetStored,
    MoveStored,
    Pin,
    Reserve,
    Reserved,
    Settle,
    StoredBlocksArrived,
    StoredLayout,
    StoredMoved,
)
from pageant.protocol.tiers import Moved

log = logging.getLogger("pageant.blocks")

FOLLOW_SECONDS = 1e6
"""The longest wait for an event of a store, and for copies: who dies is known sooner."""
SAVES_MAX = 128
"""Blocks that are saved at once, and thus held."""
PATIENCE_SECONDS = 5.0
"""How long a sequence waits for blocks of the store, at most."""
PATIENCE_LEAST = 0.1
FETCH_SHARE = 0.5
"""Share of its patience that a sequence waits for blocks to be fetched: those that have come are then copied."""


def patience(costs: MoveCosts, tokens: float) -> float:
    """Return the seconds that a sequence waits for stored blocks of so many tokens: as long as computing them takes."""
    per_token = costs.seconds_per_token
    seconds = PATIENCE_SECONDS if per_token is None else tokens * per_token
    return min(max(seconds, PATIENCE_LEAST), PATIENCE_SECONDS)


class StoringManager(Actor):
    """Base of the block manager: the store of its host, if there is one."""

    _allocation: Allocation | None
    _scheduler: int
    _epoch: int

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self._mirror = Mirror()
        self._store_costs = MoveCosts()
        self._arena: ArenaRef | None = None
        """The store's memory, while the store is up."""
        self._store_up = False
        self._following: asyncio.Event | None = None
        """Set when the store is not followed any more."""
        self._saving: StoredBlocks | None = None
        """The blocks that a task saves."""
        self._executor = ""
        """The address of the executor that copies blocks."""
        self._layout: StoredLayout | None = None
        """How the store keeps the executor's blocks."""

    @property
    def _stored(self) -> StoredBlocks | None:
        return None if self._allocation is None else self._allocation.stored_blocks

    # The store.

    def store_up(self) -> None:
        """Use a store that is up."""
        self._store_up = True
        self._follow_store()

    def store_down(self) -> None:
        """Do without the store until it is up again."""
        self._store_up = False
        self._stop_following()

    def _use_store(self, event: ExecutorReady, allocation: Allocation, executor: str) -> None:
        """Keep blocks of a new executor in the store, if it has any that a store can keep."""
        layout = event.stored if self.options.store and self.options.enable_prefix_caching else None
        if layout is None or layout != self._layout:
            self._stop_following()
        if layout is not None:
            self._executor, self._layout = executor, layout
            tokens = allocation.block_size / len(allocation.groups)
            pool, groups, costs = allocation.pool, allocation.groups, self._store_costs
            allocation.use_store(StoredBlocks(pool, groups, self._mirror, costs, layout.kind, tokens))
            if self._following is None:
                self._follow_store()

    def _follow_store(self) -> None:
        if self._store_up and self._stored is not None:
            self._stop_following()
            self._following = asyncio.Event()
            assert self._layout is not None, "its blocks are stored"
            self.spawn(self._follow_events(self._layout, self._following))

    def _stop_following(self) -> None:
        if self._following is not None:
            self._following.set()
        self._following = self._arena = None
        self._mirror.clear()

    async def _follow_events(self, layout: StoredLayout, over: asyncio.Event) -> None:
        follow = FollowStore(kind=layout.kind, layout=layout)
        try:
            async for events in self.stream(self.options.store, follow, FOLLOW_SECONDS):
                if over.is_set():
                    return
                self._arena = events.arena
                self._mirror.change(split(events.stored), split(events.removed), reset=events.reset)
                self._mirror.change_away(split(events.away), split(events.not_away))
                self._tend_store()
        except PageantError:  # it is down; `store_up` says when it is back
            if not over.is_set():
                self._stop_following()

    def _forget_stored(self) -> None:
        """Forget what the store has of this model."""
        if self._stored is not None and self._arena is not None:
            self._mirror.clear()
            self.tell(self.options.store, ForgetStored(kind=self._stored.kind))

    # Blocks.

    def _tend_store(self) -> None:
        """Begin what the last exchange made due."""
        stored = self._stored
        if stored is None:
            return
        assert self._allocation is not None, "its blocks are stored"
        for arrival in stored.take_arrivals():
            arrival.step = self._allocation.granted_step
            self.spawn(self._restore(stored, arrival))
        if self._arena is not None and self._saving is not stored and stored.has_unsaved:
            self._saving = stored
            self.spawn(self._save(stored))

    async def _save(self, stored: StoredBlocks) -> None:
        """Save what is queued, some blocks after others."""
        while self._stored is stored and self._arena is not None:
            scheduler, due = self._scheduler, stored.take_unsaved(SAVES_MAX)
            if not due or self._layout is None:
                break
            names = joined([*map(stored.full_name, due)])
            request = Reserve(kind=stored.kind, names=names, slot_bytes=self._layout.slot_bytes)
            try:
                reserved = await self.ask(self.options.store, request, FOLLOW_SECONDS)
            except PageantError as error:  # the store is down, and has nothing
                log.info("blocks are not saved in the store: %s", error)
                break
            save = stored.begin_save(due, reserved.slots, reserved.generations)
            self._refuse(reserved, {NO_SLOT, *save.slots})
            moved = await self._copy("save", stored, save, scheduler)
            stored.end_save(save, moved.ok)
            self._settle(save.slots, save.generations, moved.ok)
            self._tell_room(stored)
        if self._saving is stored:
            self._saving = None

    def _refuse(self, reserved: Reserved, used: set[int]) -> None:
        """Give back slots that are not used: their blocks have been evicted meanwhile."""
        places = [place for place, slot in enumerate(reserved.slots.tolist()) if slot not in used]
        slots, generations = reserved.slots[places].tolist(), reserved.generations[places].tolist()
        self._settle(slots, generations, bools([False] * len(places)))

    async def _restore(self, stored: StoredBlocks, arrival: Arrival) -> None:
        """Fetch the blocks that a sequence waits for, and have it admitted."""
        scheduler = self._scheduler
        self.spawn(self._lose_patience(stored, arrival))
        nothing = bools([False] * len(arrival.names))
        try:
            pinned = await self.ask(self.options.store, self._pin(stored, arrival), FOLLOW_SECONDS)
        except PageantError:
            stored.end_arrival(arrival, nothing, stale=True)
            self._arrived(stored, arrival)
            return
        self._store_costs.moved(Move.FETCH, Moved(blocks=pinned.fetched, seconds=pinned.seconds))
        there = np.flatnonzero(pinned.slots != NO_SLOT)
        arrival.slots, arrival.generations = pinned.slots[there].tolist(), pinned.generations[there].tolist()
        part = Transfer(
            [arrival.names[index] for index in there],
            [arrival.blocks[index] for index in there],
            arrival.step,
            arrival.slots,
            arrival.generations,
        )
        moved = await self._copy("restore", stored, part, scheduler)
        ok = nothing.copy()
        ok[there] = moved.ok
        self._settle(part.slots, part.generations, moved.ok | moved.stale)
        stored.end_arrival(arrival, ok, stale=moved.stale)
        self._arrived(stored, arrival)

    def _pin(self, stored: StoredBlocks, arrival: Arrival) -> Pin:
        names = joined([*map(stored.full_name, arrival.names)])
        if not stored.has_to_fetch(arrival):
            return Pin(names=names)
        seconds = patience(self._store_costs, len(arrival.names) * stored.block_tokens)
        return Pin(names=names, kind=stored.kind, patience=FETCH_SHARE * seconds)

    async def _lose_patience(self, stored: StoredBlocks, arrival: Arrival) -> None:
        """Have a sequence computed whose blocks take longer than that would."""
        tokens = len(arrival.names) * stored.block_tokens
        await asyncio.sleep(patience(self._store_costs, tokens))
        if not arrival.is_late:
            stored.give_up(arrival)
            self._tell_arrived(stored)

    def _arrived(self, stored: StoredBlocks, arrival: Arrival) -> None:
        if not arrival.is_late:
            arrival.is_late = True  # nobody waits for it any more
            self._tell_arrived(stored)
        self._tell_room(stored)
        self._wake_followers()

    def _tell_room(self, stored: StoredBlocks) -> None:
        """Have an admission asked for again that was refused while a transfer held blocks."""
        if stored.take_room_awaited():
            self._tell_arrived(stored)

    def _tell_arrived(self, stored: StoredBlocks) -> None:
        if self._stored is stored:
            self.tell("scheduler", StoredBlocksArrived())

    def _wake_followers(self) -> None:
        raise NotImplementedError

    async def _copy(
        self, way: Literal["save", "restore"], stored: StoredBlocks, blocks: Transfer, scheduler: int
    ) -> StoredMoved:
        """Have the executor copy blocks."""
        none = StoredMoved(ok=bools([False] * len(blocks.names)), stale=True)
        if not blocks.names or self._arena is None or self._stored is not stored:
            return none
        request = MoveStored(
            way=way,
            epoch=self._epoch,
            arena=self._arena,
            blocks=int32(blocks.blocks),
            names=joined([*map(stored.full_name, blocks.names)]),
            slots=int64(blocks.slots),
            generations=int64(blocks.generations),
            scheduler=scheduler,
            step=blocks.step,
        )
        try:
            moved = await self.ask(self._executor, request, FOLLOW_SECONDS)
        except PageantError:  # the executor died, and its memory with it
            return none
        if not moved.stale:
            self._store_costs.moved(Move.HOST, Moved(blocks=len(blocks.names), seconds=moved.seconds))
        return moved

    def _settle(self, slots: Sequence[int], generations: Sequence[int], ok: BoolVector) -> None:
        if len(slots):
            message = Settle(slots=int64(slots), generations=int64(generations), ok=ok)
            self.tell(self.options.store, message)
