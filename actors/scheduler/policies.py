"""Who goes first, and who gives way. A policy is a small class; name your own in YAML:

actors:
  scheduler: {options: {policy: my_lab.policies:ShortestFirst}}

Under each of these, every request's turn comes: who waits gains on those that come later.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from pageant.actors.runtime.classes import load_object
from pageant.actors.scheduler.request import ScheduledRequest
from pageant.protocol.errors import TopologyError


class Policy(Protocol):
    """Decides order. `order` and `victim` must be pure functions of what they are given."""

    def order(self, request: ScheduledRequest) -> tuple[float, ...]:
        """The key by which waiting requests are admitted and running ones are served: smallest first.

        Asked once, when a request comes; ties go by arrival.
        """

    def victim(self, running: Sequence[ScheduledRequest]) -> ScheduledRequest:
        """Who is preempted when memory runs out, of requests in the policy's order."""


@runtime_checkable
class Shares(Protocol):
    """What a policy has besides if it shares the machine between tenants: the one with the lowest rank is
    next, and `order` decides among its own requests."""

    def rank(self, tenant: str) -> float:
        """How much a tenant has had."""

    def arrived(self, request: ScheduledRequest) -> None:
        """A request has come."""

    def served(self, tenant: str, num_prompt_tokens: int, num_output_tokens: int) -> None:
        """A tenant was given so many tokens; negative ones were not needed after all."""

    def left(self, request: ScheduledRequest) -> None:
        """A request has ended."""


class _LastGivesWay:
    """Who is last in order gives way, so that whoever is first always finishes."""

    def victim(self, running: Sequence[ScheduledRequest]) -> ScheduledRequest:
        return running[-1]


class FirstComeFirstServed(_LastGivesWay):
    """By arrival."""

    def order(self, request: ScheduledRequest) -> tuple[float, ...]:
        return (request.arrived_at,)


class Priority(_LastGivesWay):
    """By the request's `priority`, lower first; `AGEING` seconds of waiting are worth one step of it."""

    AGEING = 10.0

    def order(self, request: ScheduledRequest) -> tuple[float, ...]:
        return (request.arrived_at + self.AGEING * request.priority,)


class ShortestFirst(_LastGivesWay):
    """By the tokens to compute at most, prompt and answer; a second of waiting is worth `AGEING` of them."""

    AGEING = 100.0

    def order(self, request: ScheduledRequest) -> tuple[float, ...]:
        return (request.max_total + self.AGEING * request.arrived_at,)


class Deadline(_LastGivesWay):
    """By deadline, the earliest first (Liu and Layland, 1973). One without has `DEFAULT` seconds."""

    DEFAULT = 60.0

    def order(self, request: ScheduledRequest) -> tuple[float, ...]:
        return (min(request.deadline, request.arrived_at + self.DEFAULT),)


class FairShare:
    """Tenants in turn, by what they have had: Virtual Token Counter (Sheng et al.: Fairness in Serving Large
    Language Models, 2024). An output token counts `OUTPUT_WEIGHT` prompt tokens.

    A tenant that comes back is lifted to the least of those who wait or run, or, if there are none, to the
    one that left last, so that nobody saves up turns. One whose requests another scheduler had before is not:
    it comes with what it was given.
    """

    OUTPUT_WEIGHT = 2.0

    def __init__(self) -> None:
        self._counters: dict[str, float] = {}
        self._open: dict[str, int] = {}  # requests by tenant
        self._ranks: list[tuple[float, str]] = []  # a heap of those with requests, perhaps as they once were
        self._listed: dict[str, float] = {}  # each one's rank there; entries with others are of no account
        self._idle: list[tuple[float, str]] = []  # a heap of the others
        self._last = 0.0

    def order(self, request: ScheduledRequest) -> tuple[float, ...]:
        return (request.arrived_at,)

    def victim(self, running: Sequence[ScheduledRequest]) -> ScheduledRequest:
        return max(running, key=lambda request: (self.rank(request.tenant), request.key))

    def rank(self, tenant: str) -> float:
        return self._counters.get(tenant, 0.0)

    def arrived(self, request: ScheduledRequest) -> None:
        tenant = request.tenant
        if tenant not in self._open:
            least = 0.0 if request.is_resumed else self._least()
            self._counters[tenant] = max(self.rank(tenant), least)
            self._list(tenant)
        self._open[tenant] = self._open.get(tenant, 0) + 1

    def served(self, tenant: str, num_prompt_tokens: int, num_output_tokens: int) -> None:
        given = num_prompt_tokens + self.OUTPUT_WEIGHT * num_output_tokens
        if given < 0 and tenant not in self._counters:
            return  # it is gone, and comes back with what the others have by then
        self._counters[tenant] = self.rank(tenant) + given
        if tenant in self._open and self._counters[tenant] < self._listed[tenant]:
            self._list(tenant)

    def _list(self, tenant: str) -> None:
        self._listed[tenant] = self._counters[tenant]
        heapq.heappush(self._ranks, (self._counters[tenant], tenant))

    def left(self, request: ScheduledRequest) -> None:
        tenant = request.tenant
        self._open[tenant] -= 1
        if self._open[tenant]:
            return
        del self._open[tenant], self._listed[tenant]
        self._last = self.rank(tenant)
        heapq.heappush(self._idle, (self._last, tenant))
        least = self._least()
        while self._idle and self._idle[0][0] <= least:  # it would be lifted to as much
            _, tenant = heapq.heappop(self._idle)
            if tenant not in self._open:
                self._counters.pop(tenant, None)

    def _least(self) -> float:
        """The lowest counter of those with requests, else that of who left last."""
        while self._ranks:
            rank, tenant = self._ranks[0]
            if self._listed.get(tenant) != rank:
                heapq.heappop(self._ranks)
            elif self._counters[tenant] > rank:
                heapq.heappop(self._ranks)
                self._list(tenant)
            else:
                return rank
        return self._last


POLICIES: dict[str, type[Policy]] = {
    "fcfs": FirstComeFirstServed,
    "priority": Priority,
    "shortest": ShortestFirst,
    "fair": FairShare,
    "deadline": Deadline,
}


def make_policy(name: str) -> Policy:
    """The policy of that name, or the class that `module:Class` names.

    Raises:
        TopologyError: neither.
    """
    place = "actors.scheduler.options.policy"
    if ":" not in name:
        if name not in POLICIES:
            known = ", ".join(POLICIES)
            raise TopologyError(place, f"no policy {name!r}; expected {known} or module:Class")
        return POLICIES[name]()
    policy = load_object(name, place)()
    for method in ("order", "victim"):
        if not callable(getattr(policy, method, None)):
            raise TopologyError(place, f"{name!r} has no method {method!r}, which a policy needs")
    checked: Policy = policy
    return checked
