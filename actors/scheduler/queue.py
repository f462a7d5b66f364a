"""The waiting requests, in the policy's order, with O(log n) insertion and amortised O(1) removal."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from pageant.actors.scheduler.request import Key, ScheduledRequest, State

GHOSTS_MIN = 64  # not worth a rebuild below


class WaitingQueue:
    """A heap by `request.key`; a request that left another way stays in it as a ghost, and is passed over
    when it comes to the top. When ghosts are the larger part, they are swept out."""

    def __init__(self) -> None:
        self._heap: list[tuple[Key, ScheduledRequest]] = []
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def push(self, request: ScheduledRequest) -> None:
        """Adds a request: a new one, or a preempted one, which its key puts back where it was."""
        assert request.state is State.WAITING
        heapq.heappush(self._heap, (request.key, request))
        self._length += 1

    def discard(self) -> None:
        """A waiting request has ended; call after its state has been changed."""
        self._length -= 1
        if len(self._heap) > 2 * self._length + GHOSTS_MIN:
            self._heap = [entry for entry in self._heap if entry[1].state is State.WAITING]
            heapq.heapify(self._heap)

    def first(self, count: int) -> Iterator[ScheduledRequest]:
        """The next requests in order, taken out; what is not used is to be pushed back."""
        while count > 0 and self._heap:
            _, request = heapq.heappop(self._heap)
            if request.state is State.WAITING:
                self._length -= 1
                count -= 1
                yield request
