"""The part of an executor that copies blocks to and from a store, when the plans before are computed."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import numpy as np

from pageant.actors.executor.groups.leading import Leading
from pageant.actors.runtime import receives
from pageant.protocol.arrays import bools
from pageant.protocol.storing import MoveShares, MoveStored, StoredLayout, StoredMoved

if TYPE_CHECKING:
    from pageant.actors.executor.core import ExecutorCore
    from pageant.actors.executor.tiers.stored_memory import StoredMemory

__all__ = ["Storing"]


class Storing(Leading):
    """Copies blocks, and has the other members copy their shares."""

    core: ExecutorCore
    _stored_turns: dict[int, asyncio.Future[bool]]
    """Copies that wait for their turn, by number: whether they are to be made."""

    @property
    def _stored_memory(self) -> StoredMemory | None:
        # A runner of somebody's own may know nothing of stores.
        return getattr(self._runner, "stored", None)

    @property
    def stored_layout(self) -> StoredLayout | None:
        """Return how a store keeps this executor's blocks; None if it cannot."""
        memory = self._stored_memory
        if memory is None:
            return None
        layout = memory.layout
        return StoredLayout(
            kind=memory.kind,
            slot_bytes=layout.slot_bytes,
            num_parts=layout.num_parts,
            parts_bytes=layout.parts_bytes,
            has_words=layout.has_words,
        )

    @receives(concurrent=True)
    async def move_stored(self, request: MoveStored) -> StoredMoved:
        """Copy blocks between the device and a store, once the plans before are computed."""
        if request.epoch != self.core.epoch:  # it was asked for of a former life, whose memory is gone
            return StoredMoved(ok=bools([False] * len(request.blocks)), stale=True)
        turn: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        number = self.core.stored_moves.add(request)
        self._stored_turns[number] = turn
        self._give_stored_turns()
        try:
            if not await turn:
                return StoredMoved(ok=bools([False] * len(request.blocks)), stale=True)
        finally:
            self.core.stored_moves.cancel(number)
            self._stored_turns.pop(number, None)
        return await self._move_stored(request)

    def _give_stored_turns(self) -> None:
        """Let those copies begin that need not wait any more."""
        core = self.core
        due = core.stored_moves.take_due(core.scheduler, has_foreign=core.has_foreign_steps)
        for number, is_made in due:
            turn = self._stored_turns.get(number)
            if turn is not None and not turn.done():
                turn.set_result(is_made)

    async def _move_stored(self, request: MoveStored) -> StoredMoved:
        memory = self._stored_memory
        assert memory is not None, "the block manager knows the layout"
        began = self.clock.now()
        self._tell_moved()
        shares = [MoveShares(move=request)] * len(self.followers)
        mine, others = await asyncio.gather(
            self.offload_beside("stored", memory.move, request), self._ask_all(shares)
        )
        ok = np.logical_and.reduce([mine, *(share.ok for share in others)])
        return StoredMoved(ok=ok, seconds=self.clock.now() - began)
