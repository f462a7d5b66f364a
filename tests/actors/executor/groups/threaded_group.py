"""A group's runners in threads of this process, as the executor of its leader sees them."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any

from pageant.actors.executor.groups.orders import order_of
from pageant.actors.executor.work import Work
from tests.kernels.collectives.groups import in_threads

__all__ = ["ThreadedGroup"]


class ThreadedGroup:
    """Runners of a group, which launch together.

    Args:
        makers: make the runners, the leader's first. Each is called in a thread of its own, for they meet.
        refusals: every so many launches, the leader refuses one, and hands the same step over again.
    """

    def __init__(self, makers: Sequence[Callable[[], Any]], refusals: int) -> None:
        found: list[Any] = in_threads(makers)
        self.leader, *self.followers = found
        self.number = 0
        """Launches so far, those that were refused included."""
        self._refusals = refusals
        self._orders = [queue.SimpleQueue[Any]() for _ in self.followers]
        for orders, follower in zip(self._orders, self.followers, strict=True):
            threading.Thread(target=self._follow, args=(orders, follower), daemon=True).start()

    def _follow(self, orders: queue.SimpleQueue[Any], follower: Any) -> None:
        while (order := orders.get()) is not None:
            follower.follow(order)

    def _begin(self, inputs: Any) -> None:
        self.number += 1
        work = Work(self.number, 1, self.number, False, (inputs,), None)
        order = order_of(work, self.leader.ordered(work))
        for orders in self._orders:
            orders.put(order)
        self.leader.begin(work)

    def launch(self, inputs: Any) -> Any:
        """Compute a step, after it was refused once or not."""
        if self.number % self._refusals == 0:
            self._begin(inputs)
            self.leader.finish()
        self._begin(inputs)
        drawn = self.leader.launch(inputs)
        self.leader.finish()
        return drawn

    def close(self) -> None:
        """End the followers' threads."""
        for orders in self._orders:
            orders.put(None)
