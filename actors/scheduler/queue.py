"""The waiting requests, in the policy's order, with insertion and removal in O(log n)."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from pageant.actors.scheduler.ordered import Ordered
from pageant.actors.scheduler.policies import Shares
from pageant.actors.scheduler.request import Key, ScheduledRequest, State


class WaitingQueue:
    """Takes the next request by `request.key`, or, with `shares`, of the tenant who is owed the most.

    Long prompts stand in a lane of their own: while there is no room for another one, others go past them.
    """

    def __init__(self, shares: Shares | None = None) -> None:
        self._short, self._long = _Lane(shares), _Lane(shares)

    def __len__(self) -> int:
        return self._short.length + self._long.length

    def push(self, request: ScheduledRequest) -> None:
        """Adds a request: a new one, or a preempted one, which its key puts back where it was."""
        assert request.state is State.WAITING
        self._lane(request).push(request)

    def discard(self, request: ScheduledRequest) -> None:
        """A waiting request has ended."""
        self._lane(request).discard(request)

    def first(self, count: int, long_count: int | None = None) -> Iterator[ScheduledRequest]:
        """The next requests in order, taken out; what is not used is to be pushed back.

        Args:
            long_count: how many of them may be long; None is any number.
        """
        while count > 0:
            short = self._short.head()
            long = None if long_count == 0 else self._long.head()
            if short is None and long is None:
                return
            if long is None or (short is not None and short < long):
                request = self._short.pop()
            else:
                request = self._long.pop()
                long_count = None if long_count is None else long_count - 1
            count -= 1
            yield request

    def _lane(self, request: ScheduledRequest) -> _Lane:
        return self._long if request.is_long else self._short


class _Lane:
    """Each tenant's requests by key, and the tenants in a heap by rank. Without shares, all is one tenant's.

    Ranks mostly rise: a tenant's place is looked at again only when it comes to the top.
    """

    def __init__(self, shares: Shares | None) -> None:
        self._shares = shares
        self._requests: dict[str, Ordered] = {}
        self._turns: list[tuple[float, str]] = []  # by rank
        self._ranks: dict[str, float] = {}  # that each tenant stands in `turns` with; other entries are stale
        self.length = 0

    def push(self, request: ScheduledRequest) -> None:
        tenant = request.tenant if self._shares is not None else ""
        requests = self._requests.get(tenant)
        if requests is None:
            requests = self._requests[tenant] = Ordered()
        requests.add(request)
        self.length += 1
        rank = self._rank(tenant)
        if rank < self._ranks.get(tenant, float("inf")):
            self._enter(tenant, rank)

    def discard(self, request: ScheduledRequest) -> None:
        self._requests[request.tenant if self._shares is not None else ""].remove(request)
        self.length -= 1

    def head(self) -> tuple[float, Key] | None:
        """What the next request compares by."""
        while self._turns:
            rank, tenant = self._turns[0]
            if self._ranks.get(tenant) != rank:
                heapq.heappop(self._turns)
                continue
            if not self._requests[tenant]:
                heapq.heappop(self._turns)
                del self._requests[tenant], self._ranks[tenant]
            elif self._rank(tenant) > rank:
                heapq.heappop(self._turns)
                self._enter(tenant, self._rank(tenant))
            else:
                return rank, self._requests[tenant].first().key
        return None

    def pop(self) -> ScheduledRequest:
        """Takes out the request that `head` has just compared."""
        self.length -= 1
        return self._requests[self._turns[0][1]].pop()

    def _rank(self, tenant: str) -> float:
        return 0.0 if self._shares is None else self._shares.rank(tenant)

    def _enter(self, tenant: str, rank: float) -> None:
        self._ranks[tenant] = rank
        heapq.heappush(self._turns, (rank, tenant))
