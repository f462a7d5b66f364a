"""A member of a group that follows: it computes its share of what the leader orders, and decides nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, cast

from pageant.actors.executor.groups.meeting import KeyQueue, Meeting
from pageant.actors.executor.groups.member import Member
from pageant.actors.executor.metering import Metering
from pageant.actors.executor.options import ExecutorOptions, make_runner
from pageant.actors.executor.tiers.moving import Move, Way
from pageant.actors.runtime import receives
from pageant.actors.runtime.disk_file import DiskFile
from pageant.models.errors import CheckpointError
from pageant.protocol.errors import BadRequest, PeerGone
from pageant.protocol.ranks import (
    AddShare,
    BlocksMoved,
    DescribeRank,
    FollowKeys,
    ForgetShare,
    FormGroup,
    GroupFormed,
    KeysTaken,
    MeetingKey,
    MoveBlocks,
    MoveSlots,
    Order,
    RankReady,
    ShareAdded,
    TakeKeys,
)
from pageant.protocol.statistics import ExecutorStatistics, GetExecutorStatistics
from pageant.protocol.storing import MoveShares, StoredMoved

if TYPE_CHECKING:
    from pageant.actors.executor.groups.following_runner import FollowingRunner
    from pageant.actors.executor.runners.loaded_model import LoadedModel
    from pageant.actors.executor.runners.model_runner import ModelRunner

__all__ = ["OrderMissed", "Rank"]


class OrderMissed(RuntimeError):
    """An order that does not follow the last one: a message was lost, or there is a bug."""


class Rank(Member):
    """Follows the leader of its group, as the rank that its name says (`executor/1`)."""

    heavy = True

    class Options(ExecutorOptions, frozen=True, kw_only=True):
        """Options of a member: those of the leader; see `ExecutorOptions`."""

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self._loaded: LoadedModel | None = None
        """This member's share of the weights, until it has a runner."""
        self._runner: FollowingRunner | None = None
        """Set once the group is formed. What a leader wants before is of its former life, and is not done."""
        self._next_order = 1
        self._slots_moved: asyncio.Future[None] | None = None
        """The latest move of slots, done when it is made: they are made in turn."""
        self._keys: KeyQueue
        """Keys of the meeting that the leader has not taken yet. Set by `on_start`."""
        self._early: list[MeetingKey] = []
        """Keys of others that came before the meeting."""

    @property
    def rank(self) -> int:
        """See `Loading`."""
        return int(self.name.rpartition("/")[2])

    def _present_runner(self) -> ModelRunner | None:
        """See `Succeeding`."""
        return cast("ModelRunner | None", self._runner)

    async def on_start(self) -> None:
        self._keys = KeyQueue()
        self._loaded = await self.offload(self._share_of_weights)

    @receives(concurrent=True)
    async def describe(self, request: DescribeRank) -> RankReady:
        """Tell the leader what this member computes with."""
        assert self._loaded is not None, "a group is formed once in the life of its members"
        return await self._described(self.rank, self._loaded)

    @receives(concurrent=True)
    async def form(self, request: FormGroup) -> GroupFormed:
        """Meet the others."""
        self._meeting = Meeting(request, self.rank, self.options.shape, self._keys.put)
        self._meeting.put_all(self._early)
        self._runner = await self.offload(self._join, self._meeting)
        self._loaded = None
        return GroupFormed(block_bytes=self._runner.host.block_bytes)

    @receives(concurrent=True)
    async def keys(self, request: FollowKeys) -> AsyncIterator[MeetingKey]:
        """Stream the keys that this member puts."""
        while True:
            yield await self._keys.get()

    @receives
    def take_keys(self, request: TakeKeys) -> KeysTaken:
        """Take keys of other members, which may come before this one is asked to the meeting."""
        if self._meeting is None:
            self._early += request.keys
        else:
            self._meeting.put_all(request.keys)
        return KeysTaken()

    def _join(self, meeting: Meeting) -> FollowingRunner:
        """Join the group, in the member's own thread."""
        disk = None if self.options.disk_path is None else DiskFile(self.options.disk_path)
        runner: Any = make_runner(
            self.options,
            clock=self.clock.now,
            disk=disk,
            loaded=self._loaded,
            operations=meeting.join(),
            num_near=meeting.form.num_near,
        )
        return runner  # type: ignore[no-any-return]

    @receives
    def compute(self, order: Order) -> None:
        """Compute a launch, after those that were ordered before it.

        Raises:
            OrderMissed: it is not the next one.
        """
        if self._runner is None:
            return
        if order.number != self._next_order:
            raise OrderMissed(f"order {order.number} came, {self._next_order} was expected")
        self._next_order += 1
        self.spawn(self._follow(order))

    async def _follow(self, order: Order) -> None:
        try:
            await self.offload(self._following().follow, order)
        except Exception as error:
            await self._outlive_cause(error)
            raise

    @receives
    def move_slots(self, message: MoveSlots) -> None:
        """Move accepted drafts, after the launches that were ordered before."""
        if self._runner is not None:
            self._slots_moved = asyncio.get_running_loop().create_future()
            self.spawn(self._move_slots(message, self._slots_moved))

    async def _move_slots(self, message: MoveSlots, moved: asyncio.Future[None]) -> None:
        await self.offload(self._following().move_slots, message.sources, message.destinations)
        moved.set_result(None)

    async def _all_slots_moved(self) -> None:
        """Wait for the moves of slots that came so far."""
        if self._slots_moved is not None:
            await self._slots_moved

    @receives(concurrent=True)
    async def move(self, request: MoveBlocks) -> BlocksMoved:
        """Move this member's shards of blocks between tiers."""
        await self._all_slots_moved()
        move = Move(Way(request.way), request.sources, request.destinations)
        await self.offload_beside("moves", self._following().host.move, move)
        return BlocksMoved()

    @receives(concurrent=True)
    async def move_stored(self, request: MoveShares) -> StoredMoved:
        """Copy this member's shares of blocks to or from a store."""
        stored = self._following().stored
        assert stored is not None, "members are alike"
        await self._all_slots_moved()
        return StoredMoved(ok=await self.offload_beside("stored", stored.move, request.move))

    @receives(concurrent=True)
    async def add_share(self, request: AddShare) -> ShareAdded:
        """Load this member's share of an adapter."""
        runner = self._following()
        try:
            await self.offload_beside("adapters", runner.add_adapter, request.key, request.folder)
        except CheckpointError as error:
            raise BadRequest(str(error), "folder") from None
        return ShareAdded()

    @receives
    def forget_share(self, message: ForgetShare) -> None:
        """Forget an adapter, after the launches that were ordered before."""
        if self._runner is not None:
            self.spawn(self.offload(self._runner.remove_adapter, message.key))

    @receives(concurrent=True)
    async def statistics(self, request: GetExecutorStatistics) -> ExecutorStatistics:
        """Return the device and the memory. Steps are the leader's to count."""
        return Metering().statistics_of(self._following(), self.options)

    def _following(self) -> FollowingRunner:
        """Return the runner.

        Raises:
            PeerGone: the group has not met, in this life.
        """
        if self._runner is None:
            raise PeerGone(f"{self.name} has not met its group yet")
        return self._runner
