"""Groups of executors in a simulation: real leaders, orders and members, over memory that is not there.

Each member has all slots of the KV memory. The leader draws by what all members see: where one sees something else,
since it missed an order, a copy or a move, another token comes of it.

All nodes of a simulation are in one process. The leader's thread computes a step for the members too, once the order
has come to each of them, as the operations of a group bring their threads together. Where a member has died, the
leader waits until it is stopped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from pageant.actors.executor.batch.inputs import StepInputs
from pageant.actors.executor.groups.orders import packed_of, with_adapters
from pageant.actors.executor.groups.rank import Rank
from pageant.actors.executor.guided.undrawn import Undrawn
from pageant.actors.executor.runners.model_runner import Drawn
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
    Order,
    RankReady,
    RankStep,
)

__all__ = ["SimulatedLeader", "SimulatedMeeting", "SimulatedRank", "meeting_of"]


class SimulatedMeeting:
    """Meeting place of the members of one life of a group.

    Args:
        num_followers: members but the leader.
    """

    def __init__(self, num_followers: int) -> None:
        self.num_followers = num_followers
        self.runners: dict[int, SimulatedRunner] = {}
        """The runners of those that follow, by their ranks."""
        self.orders: dict[int, dict[int, Order]] = {}
        """Orders that came and are not done, by their numbers, and by the ranks that have them."""
        self._changed = asyncio.Event()
        self._in_turn = asyncio.Lock()

    async def all_came(self, number: int) -> None:
        """Return when a launch has been ordered from all, in the order of launches."""
        async with self._in_turn:
            while len(self.orders.get(number, ())) < self.num_followers:
                self._changed.clear()
                await self._changed.wait()

    def came(self, rank: int, order: Order) -> None:
        """Note that an order has come to a member."""
        self.orders.setdefault(order.number, {})[rank] = order
        self._changed.set()

    def compute(self, number: int, place: int, token_ids: Int64) -> list[UInt64]:
        """Have the others compute a step of a launch. Return what each sees for its tokens, [T]."""
        return [
            _follow(self.runners[rank], order.steps[place], token_ids)
            for rank, order in sorted(self.orders[number].items())
        ]

    def finish(self, number: int) -> None:
        """Note that a launch is over."""
        del self.orders[number]


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
        self._number = self._place = 0
        self._seen_elsewhere: Sequence[UInt64] = ()

    def ordered(self, work: Work) -> None:
        """See `LeadsOthers`."""

    def begin(self, work: Work) -> None:
        """See `LeadsOthers`."""
        self._number, self._place = work.number, 0

    def finish(self) -> None:
        """See `LeadsOthers`."""
        self._meeting.finish(self._number)

    def launch(self, inputs: StepInputs) -> Drawn | Undrawn:
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
        runner: Any = SimulatedRunner(self.options, ready=True)
        self._runner = self._place.runners[self.rank] = runner
        return GroupFormed()

    async def _follow(self, order: Order) -> None:
        self._place.came(self.rank, order)
