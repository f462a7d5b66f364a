"""Groups of executors in a simulation: real leaders, orders and members, over memory that is not there.

Each member has all slots of the KV memory. The leader draws by what all members see: where one sees something else,
since it missed an order, a copy or a move, another token comes of it.

All nodes of a simulation are in one process. The leader's thread computes a step for the members too, once the order
has come to each of them, as the operations of a group bring their threads together. Where a member has died, the
leader waits until it is stopped.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from pageant.actors.executor.batch.inputs import StepInputs
from pageant.actors.executor.groups.moved_slots import MovedSlots
from pageant.actors.executor.groups.orders import packed_of, with_adapters
from pageant.actors.executor.groups.rank import Rank
from pageant.actors.executor.guided.pending_sample import PendingSample
from pageant.actors.executor.runners.model_runner import StepTokens
from pageant.actors.executor.simulated_model import mix
from pageant.actors.executor.simulated_runner import Int64, SimulatedOptions, SimulatedRunner, UInt64
from pageant.actors.executor.work import Work
from pageant.actors.runtime import receives
from pageant.actors.runtime.address import group_of
from pageant.protocol.ranks import (
    DescribeRank,
    Fingerprint,
    FormGroup,
    GroupFormed,
    MoveSlots,
    Order,
    RankReady,
    RankStep,
)

__all__ = ["SimulatedFollower", "SimulatedLeader", "SimulatedMeeting", "SimulatedRank", "meeting_of"]


class SimulatedFollower:
    """Member that follows, as the leader's thread has it compute: it pairs what it is told with its orders, in turn.

    Args:
        rank: the member's.
        runner: its share of the KV memory.
    """

    def __init__(self, rank: int, runner: SimulatedRunner) -> None:
        self._rank, self._runner = rank, runner
        self._orders: deque[Order] = deque()
        """Orders that came and are not done. The first one is at hand."""
        self._place = 0
        """The next step of the order at hand."""
        self.latest = 0
        """The number of the order that came last."""

    def came(self, order: Order) -> None:
        """Take an order."""
        self._orders.append(order)
        self.latest = order.number

    def go_on(self, number: int, place: int, token_ids: Int64) -> UInt64:
        """Compute a step of a launch. Return what this member sees for its tokens, [T]."""
        order = self._at_hand(number, place)
        seen = _follow(self._runner, order.steps[place], token_ids)
        self._place += 1
        if self._place == len(order.steps):
            self._leave()
        return seen

    def end(self, number: int, place: int) -> None:
        """Leave this step of a launch, and those after it: they are void."""
        self._at_hand(number, place)
        self._leave()

    def _at_hand(self, number: int, place: int) -> Order:
        order = self._orders[0]
        assert (order.number, self._place) == (number, place), (
            f"the leader speaks of step {place} of launch {number}, and rank {self._rank} is at step {self._place} of "
            f"launch {order.number}"
        )
        return order

    def _leave(self) -> None:
        self._orders.popleft()
        self._place = 0


class SimulatedMeeting:
    """Meeting place of the members of one life of a group.

    Args:
        num_followers: members but the leader.
    """

    def __init__(self, num_followers: int) -> None:
        self._num_followers = num_followers
        self._followers: dict[int, SimulatedFollower] = {}
        """Those that have joined, by their ranks."""
        self._changed = asyncio.Event()
        self._in_turn = asyncio.Lock()

    def join(self, rank: int, runner: SimulatedRunner) -> None:
        """Take part, as a member that follows."""
        self._followers[rank] = SimulatedFollower(rank, runner)

    async def all_came(self, number: int) -> None:
        """Return when a launch has been ordered from all, in the order of launches."""
        async with self._in_turn:
            while sum(one.latest >= number for one in self._followers.values()) < self._num_followers:
                self._changed.clear()
                await self._changed.wait()

    def came(self, rank: int, order: Order) -> None:
        """Note that an order has come to a member."""
        self._followers[rank].came(order)
        self._changed.set()

    def compute(self, number: int, place: int, token_ids: Int64) -> list[UInt64]:
        """Have the others compute a step of a launch. Return what each sees for its tokens, [T]."""
        return [one.go_on(number, place, token_ids) for _, one in sorted(self._followers.items())]

    def end(self, number: int, place: int) -> None:
        """Have the others leave what is left of a launch."""
        for follower in self._followers.values():
            follower.end(number, place)


def _follow(runner: SimulatedRunner, step: RankStep, token_ids: Int64) -> UInt64:
    runner.copy(step.copy_sources, step.copy_destinations)
    packed = packed_of(step, token_ids, len(runner.windows))
    runner.write(packed, token_ids, with_adapters(step))
    return runner.seen(packed, step.ancestors if len(step.ancestors) else None)


_MEETINGS: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[tuple[str, int], SimulatedMeeting]]
_MEETINGS = WeakKeyDictionary()
"""Meetings of each simulation, by group and incarnation."""


def meeting_of(group: str, incarnation: int, num_followers: int) -> SimulatedMeeting:
    """Return where the members of this life of a group meet."""
    meetings = _MEETINGS.setdefault(asyncio.get_running_loop(), {})
    return meetings.setdefault((group, incarnation), SimulatedMeeting(num_followers))


class SimulatedLeader(SimulatedRunner):
    """Draws by what all members of its group see."""

    def __init__(self, options: SimulatedOptions, meeting: SimulatedMeeting) -> None:
        super().__init__(options, ready=True)
        self._meeting = meeting
        self._number = self._place = self._num_steps = 0
        self._seen_elsewhere: Sequence[UInt64] = ()
        self._moved = MovedSlots()

    def move_slots(self, sources: Int64, destinations: Int64) -> None:
        """See `SimulatedRunner`."""
        super().move_slots(sources, destinations)
        self._moved.add(sources, destinations)

    def take_moved(self) -> list[MoveSlots]:
        """See `LeadsOthers`."""
        return self._moved.take()

    def ordered(self, work: Work) -> None:
        """See `LeadsOthers`."""

    def begin(self, work: Work) -> None:
        """See `LeadsOthers`."""
        self._number, self._place, self._num_steps = work.number, 0, len(work.steps)

    def finish(self) -> None:
        """See `LeadsOthers`."""
        if self._place < self._num_steps:
            self._meeting.end(self._number, self._place)

    def launch(self, inputs: StepInputs) -> StepTokens | PendingSample:
        """See `ModelRunner`."""
        self._seen_elsewhere = self._meeting.compute(self._number, self._place, self.known(inputs))
        self._place += 1
        return super().launch(inputs)

    def seen_by_all(self, inputs: StepInputs) -> UInt64:
        """Return what the leader sees, changed where another member sees something else: [T]."""
        seen = super().seen_by_all(inputs)
        for other in self._seen_elsewhere:
            seen = np.where(other == seen, seen, mix(seen, other))
        return seen


class SimulatedRank(Rank):
    """The real member, but for what it computes with and for where it meets."""

    class Options(SimulatedOptions, frozen=True, kw_only=True):
        """Options of the leader."""

    _place: SimulatedMeeting
    """Where this member meets the others."""

    async def on_start(self) -> None:
        """Load nothing."""

    @receives(concurrent=True)
    async def describe(self, request: DescribeRank) -> RankReady:
        """See `Rank`."""
        alike = Fingerprint(
            **{"pageant": "", "torch": "", "kernels": "", "dtype": "", "quantization": "", "checkpoint": ""},
            members=self.options.num_members,
        )
        return RankReady(rank=self.rank, fingerprint=alike, host="", weight_bytes=0)

    @receives(concurrent=True)
    async def form(self, request: FormGroup) -> GroupFormed:
        """See `Rank`."""
        self._place = meeting_of(group_of(self.name), self.incarnation, self.options.num_members - 1)
        runner: Any = SimulatedRunner(self.options, ready=True, rank=self.rank)
        self._runner = runner
        self._place.join(self.rank, runner)
        return GroupFormed()

    async def _follow(self, order: Order) -> None:
        self._place.came(self.rank, order)

    async def _move_slots(self, message: MoveSlots, moved: asyncio.Future[None]) -> None:
        """See `Rank`. At once: what the leader's thread has yet to compute of earlier orders reads none of these slots,
        and the next order does not wait for a thread of this member's."""
        self._following().move_slots(message.sources, message.destinations)
        moved.set_result(None)
