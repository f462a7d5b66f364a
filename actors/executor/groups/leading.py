"""The part of an executor that leads a group: it brings the members together, and orders its launches from them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from pageant.actors.executor.groups.joining import check_alike, check_cores
from pageant.actors.executor.groups.meeting import KeyQueue, Meeting, arranged
from pageant.actors.executor.groups.member import Member
from pageant.actors.executor.groups.orders import order_of
from pageant.actors.executor.tiers.moving import Move
from pageant.actors.executor.work import Work
from pageant.actors.runtime.address import group_of
from pageant.protocol.errors import PageantError, PeerGone
from pageant.protocol.lifecycle import DropPrepared, PrepareWeights, WeightsPrepared
from pageant.protocol.ranks import (
    AddShare,
    DescribeRank,
    FollowKeys,
    ForgetShare,
    FormGroup,
    MeetingKey,
    MoveBlocks,
    TakeKeys,
)

if TYPE_CHECKING:
    from pageant.actors.executor.groups.leading_thread import LeadsOthers
    from pageant.actors.executor.runners.model_runner import ModelRunner

__all__ = ["Leading"]

log = logging.getLogger("pageant.executor")

START_SECONDS = 86_400.0
"""How long the leader waits for a member that loads: its supervisor knows sooner if it never comes."""


class Leading(Member):
    """Leads the other members, if there are any."""

    followers: tuple[str, ...] = ()
    """Addresses of the other members, in the order of their ranks; none where the executor is alone."""

    block_bytes_elsewhere: int = 0
    """Bytes of a block on the member that has most: a stage may have more layers than another."""

    _keys: KeyQueue
    """Keys of the leader's own, while the group meets."""
    _runner: ModelRunner
    _joined: dict[str, Any]
    """The runner's arguments that a group's leader adds; see `make_runner`."""

    def open_runner(self) -> ModelRunner:
        """Return the runner. Called once, in the executor's own thread."""
        raise NotImplementedError

    async def _lead(self) -> ModelRunner:
        """Bring the group together. Return the leader's runner."""
        self._find_followers()
        loaded = await self.offload(self._share_of_weights)
        mine = await self._described(0, loaded)
        ranks = await self._ask_all([DescribeRank()] * len(self.followers))
        check_alike([mine, *ranks])
        check_cores([mine, *ranks], self.options)
        life = f"{group_of(self.name)}#{self.incarnation}"
        with arranged(self.options.collectives, life, [mine, *ranks], self.options.shape) as forms:
            runner = await self._meet(forms, loaded)
        log.info(
            "%s leads a group of %d by %s; weights of each: %s MiB",
            *(self.name, self.options.num_members, forms[0].collectives),
            ", ".join(f"{rank.weight_bytes / 2**20:,.0f}" for rank in (mine, *ranks)),
        )
        return runner

    def _find_followers(self) -> None:
        group = group_of(self.name)
        self.followers = tuple(f"{group}/{rank}" for rank in range(1, self.options.num_members))

    async def _meet(self, forms: Sequence[FormGroup], loaded: Any) -> ModelRunner:
        """Have all members meet, each in its way. Return the leader's runner."""
        self._keys = KeyQueue()
        self._meeting = meeting = Meeting(forms[0], 0, self.options.shape, self._keys.put)
        try:
            async with asyncio.TaskGroup() as tasks:
                keys = [tasks.create_task(self._pass_on_own_keys())]
                keys += [tasks.create_task(self._pass_on_keys(name, meeting)) for name in self.followers]
                joined = self.offload(self._join, meeting, loaded)
                runner, formed = await asyncio.gather(joined, self._ask_all(forms[1:]))
                self.block_bytes_elsewhere = max(one.block_bytes for one in formed)
                for task in keys:
                    task.cancel()
        except BaseExceptionGroup as errors:
            self._give_up(meeting)
            raise errors.exceptions[0] from None
        except BaseException:
            self._give_up(meeting)
            raise
        return runner  # type: ignore[no-any-return]

    def _give_up(self, meeting: Meeting) -> None:
        meeting.abort("the group did not come together")
        meeting.close()

    async def _ask_all(self, requests: Sequence[Any]) -> list[Any]:
        asked = (
            self.ask(name, request, START_SECONDS)
            for name, request in zip(self.followers, requests, strict=True)
        )
        try:
            return list(await asyncio.gather(*asked))
        except PeerGone as error:
            await self._outlive_cause(error)
            raise

    async def _pass_on_own_keys(self) -> None:
        """Tell the others the keys that the leader puts."""
        while True:
            await self._give(self.followers, await self._keys.get())

    async def _pass_on_keys(self, follower: str, meeting: Meeting) -> None:
        """Take the keys that a member puts, and tell them to the others."""
        async for key in self.stream(follower, FollowKeys(), START_SECONDS):
            meeting.put_all([key])
            await self._give([name for name in self.followers if name != follower], key)

    async def _give(self, names: Sequence[str], key: MeetingKey) -> None:
        """Give a key to some members: asked, for a tell would wait until its sender is up."""
        await asyncio.gather(*(self.ask(name, TakeKeys(keys=(key,))) for name in names))

    def _join(self, meeting: Meeting, loaded: Any) -> ModelRunner:
        """Join the group, in the executor's own thread."""
        operations = meeting.join()
        self._joined = {"loaded": loaded, "operations": operations, "num_near": meeting.form.num_near}
        try:
            return self.open_runner()
        finally:
            self._joined = {}

    def _order(self, work: Work) -> None:
        """Order a launch from the others, before the leader's own thread is given it."""
        if self.followers:
            self._tell_moved()
            order = order_of(work, self._leader.ordered(work))
            for name in self.followers:
                self.tell(name, order)

    @property
    def _leader(self) -> LeadsOthers:
        return cast("LeadsOthers", self._runner)

    def _tell_moved(self) -> None:
        """Tell the others of slots that they are to move, before anything that reads these."""
        if self.followers:
            for moved in self._leader.take_moved():
                for name in self.followers:
                    self.tell(name, moved)

    async def _move_elsewhere(self, move: Move) -> None:
        """Have the others make a move of blocks. Returns when all have."""
        self._tell_moved()
        request = MoveBlocks(way=move.way.value, sources=move.sources, destinations=move.destinations)
        await self._ask_all([request] * len(self.followers))

    async def _prepare_elsewhere(self, request: PrepareWeights) -> WeightsPrepared:
        """See `Succeeding`."""
        try:
            for name in self.followers:
                prepared = await self.ask(name, request, START_SECONDS)
                if not prepared.loaded:
                    await self._drop_elsewhere()
                    return prepared
        except PageantError:
            await self._drop_elsewhere()
            raise
        return WeightsPrepared(loaded=True)

    async def _drop_elsewhere(self) -> None:
        """See `Succeeding`."""
        await self._ask_all([DropPrepared()] * len(self.followers))

    async def _add_elsewhere(self, key: str, folder: str) -> None:
        """See `Adapting`."""
        await self._ask_all([AddShare(key=key, folder=folder)] * len(self.followers))

    def _forget_elsewhere(self, key: str) -> None:
        """See `Adapting`."""
        for name in self.followers:
            self.tell(name, ForgetShare(key=key))
