"""The waiting requests, in the policy's order, with O(log n) insertion and O(1) removal."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from pageant.actors.scheduler.policies import Policy
from pageant.actors.scheduler.request import ScheduledRequest, State

Key = tuple[tuple[float, ...], int]


class WaitingQueue:
    """A heap; a request that left another way is passed over when it comes to the top."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._heap: list[tuple[Key, ScheduledRequest]] = []
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def key(self, request: ScheduledRequest) -> Key:
        """The policy's order, arrival breaking ties."""
        return self._policy.order(request), request.serial

    def push(self, request: ScheduledRequest) -> None:
        """Adds a request: a new one, or a preempted one, which its key puts back where it was."""
        assert request.state is State.WAITING
        heapq.heappush(self._heap, (self.key(request), request))
        self._length += 1

    def discard(self) -> None:
        """A waiting request has ended; call after its state has been changed."""
        self._length -= 1

    def first(self, count: int) -> Iterator[ScheduledRequest]:
        """The next requests in order, taken out; what is not used is to be pushed back."""
        while count > 0 and self._heap:
            _, request = heapq.heappop(self._heap)
            if request.state is State.WAITING:
                self._length -= 1
                count -= 1
                yield request
