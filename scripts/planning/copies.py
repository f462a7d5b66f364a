"""Copies between planned replicas and a store that they share, by the product's own rules."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from pageant.actors.blocks.allocation import Allocation
from pageant.actors.blocks.costs import MoveCosts
from pageant.actors.blocks.stored import Arrival, Mirror, StoredBlocks
from pageant.actors.blocks.storing import SAVES_MAX, patience
from pageant.protocol.arrays import bools, int64

KIND = b"planned"
Action = Callable[[float], None]
"""Something that happens at some seconds of model time."""


class PlannedStore:
    """Store with room for all blocks that are ever saved.

    Args:
        copy_seconds: that it takes to copy the block of a token, in either direction.
    """

    def __init__(self, copy_seconds: float) -> None:
        self.copy_seconds = copy_seconds
        self.mirror = Mirror()
        # Seconds at which each block is whole.
        self.ready_at: dict[bytes, float] = {}


class PlannedCopies:
    """Copies of one replica to and from a store. Times are seconds of model time.

    Args:
        arrived: called when a sequence need not wait for blocks of the store any more.
    """

    def __init__(self, store: PlannedStore, blocks: Allocation, arrived: Callable[[], None]) -> None:
        self._store, self._blocks, self._arrived = store, blocks, arrived
        self._costs = MoveCosts()
        self._block_tokens = blocks.block_size / len(blocks.groups)
        self._stored = StoredBlocks(
            blocks.pool, blocks.groups, store.mirror, self._costs, KIND, self._block_tokens
        )
        blocks.use_store(self._stored)
        # Copies that begin when the plan of a number is computed.
        self._waiting: list[tuple[int, Action]] = []
        self._timers: list[tuple[float, Action]] = []
        self._is_saving = False
        self.num_restored = 0

    def tend(self, last_plan: int | None, now: float) -> None:
        """Begin the copies that are due, once the plans up to the last one are computed; None is no plan."""
        for arrival in self._stored.take_arrivals():
            arrival.step = self._blocks.granted_step
            self._begin(last_plan, partial(self._restore, arrival, now), now)
        if not self._is_saving and self._stored.has_unsaved:
            self._is_saving = True
            self._begin(last_plan, self._save, now)

    def computed(self, plan: int, tokens: int, durations: list[float], now: float) -> None:
        """Take note of a plan that is computed, with the tokens and seconds of its steps."""
        for seconds in durations:
            self._costs.stepped(tokens, seconds)
        due = [action for number, action in self._waiting if number <= plan]
        self._waiting = [(number, action) for number, action in self._waiting if number > plan]
        for action in due:
            action(now)

    def take_timers(self) -> list[tuple[float, Action]]:
        """Return what is to happen later, with the times, since the last call."""
        timers, self._timers = self._timers, []
        return timers

    def _begin(self, last_plan: int | None, action: Action, now: float) -> None:
        if last_plan is None:
            action(now)
        else:
            self._waiting.append((last_plan, action))

    def _save(self, now: float) -> None:
        due = self._stored.take_unsaved(SAVES_MAX)
        numbers = int64(range(len(due)))
        save = self._stored.begin_save(due, numbers, numbers)
        at = now + len(save.names) * self._block_tokens * self._store.copy_seconds
        for name in map(self._stored.full_name, save.names):
            self._store.mirror.names.add(name)
            self._store.ready_at[name] = at

        def end(now: float) -> None:
            self._stored.end_save(save, bools([True] * len(save.names)))
            self._is_saving = False

        self._timers.append((at, end))

    def _restore(self, arrival: Arrival, asked_at: float, now: float) -> None:
        names = [*map(self._stored.full_name, arrival.names)]
        tokens = len(names) * self._block_tokens
        begin = max(now, *(self._store.ready_at[name] for name in names))
        latest = asked_at + patience(self._costs, tokens)
        at = begin + tokens * self._store.copy_seconds
        if at > latest:
            self._timers.append((max(now, latest), partial(self._give_up, arrival)))
        self._timers.append((at, partial(self._end_restore, arrival)))

    def _give_up(self, arrival: Arrival, now: float) -> None:
        self._stored.give_up(arrival)
        self._arrived()

    def _end_restore(self, arrival: Arrival, now: float) -> None:
        self._stored.end_arrival(arrival, bools([True] * len(arrival.names)))
        self.num_restored += len(arrival.names)
        if not arrival.is_late:
            arrival.is_late = True
            self._arrived()
