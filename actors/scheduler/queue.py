"""The waiting requests, in the policy's order, with insertion and removal in O(log n)."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from pageant.actors.scheduler.ordered import Ordered
from pageant.actors.scheduler.policies import Shares
from pageant.actors.scheduler.request import Key, ScheduledRequest, State


class WaitingQueue:
    """Takes the next request by `request.key`, or, with `shares`, from the tenant with the lowest rank.

    Long prompts have a lane of their own: while there is no room for another one, other requests overtake them.
    """

    def __init__(self, shares: Shares | None = None) -> None:
        self._short, self._long = _Lane(shares), _Lane(shares)

    def __len__(self) -> int:
        return self._short.length + self._long.length

    def push(self, request: ScheduledRequest) -> None:
        """Add a request: a new one, or a preempted one, whose key restores its place."""
        assert request.state is State.WAITING
        self._lane(request).push(request)

    def discard(self, request: ScheduledRequest) -> None:
        """Remove a waiting request that has ended."""
        self._lane(request).discard(request)

    def first(self, count: int, long_count: int | None = None) -> Iterator[ScheduledRequest]:
        """Take out the next requests in order. The caller pushes back those that it does not use.

        Args:
            long_count: the most long requests among them; None is any number.
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
    """Each tenant's requests by key, and the tenants in a heap by rank. Without shares, all belong to one
    tenant.

    Ranks mostly rise: a tenant's rank is read again only when it comes to the top.
    """

    def __init__(self, shares: Shares | None) -> None:
        self._shares = shares
        self._requests: dict[str, Ordered] = {}
        # A heap of tenants by rank; entries may be outdated.
        self._turns: list[tuple[float, str]] = []
        # The rank of each tenant's valid entry in `_turns`.
        self._ranks: dict[str, float] = {}
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
        """Return the key by which the next request compares with that of another lane, or None."""
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
        """Remove and return the request that `head` has just compared."""
        self.length -= 1
        return self._requests[self._turns[0][1]].pop()

    def _rank(self, tenant: str) -> float:
        return 0.0 if self._shares is None else self._shares.rank(tenant)

    def _enter(self, tenant: str, rank: float) -> None:
        self._ranks[tenant] = rank
        heapq.heappush(self._turns, (rank, tenant))
