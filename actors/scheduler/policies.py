"""Scheduling policies: who goes first, and who is preempted.

A policy is a small class; name your own in YAML:

    actors:
      scheduler: {options: {policy: my_lab.policies:ShortestFirst}}

None of these policies starves a request: waiting improves its place against requests that come later.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Sequence
from typing import Protocol, runtime_checkable
from weakref import WeakSet

from pageant.actors.runtime.classes import load_object
from pageant.actors.scheduler.request import ScheduledRequest
from pageant.protocol.errors import TopologyError
from pageant.protocol.plugins import plugins_of

log = logging.getLogger("pageant.scheduler")


class Policy(Protocol):
    """Decides the order of requests. `order` and `victim` must be pure functions of their arguments."""

    def order(self, request: ScheduledRequest) -> tuple[float, ...]:
        """Return the key by which waiting requests are admitted and running ones are served: smallest first.

        Called once, when a request comes; ties go by arrival.
        """

    def victim(self, running: Sequence[ScheduledRequest]) -> ScheduledRequest:
        """Return the request to preempt when memory runs out. `running` is in the policy's order."""


@runtime_checkable
class Shares(Protocol):
    """Further methods of a policy that shares the machine between tenants.

    The tenant with the lowest rank is next, and `order` decides among its own requests.
    """

    def rank(self, tenant: str) -> float:
        """Return how much a tenant has been given."""

    def arrived(self, request: ScheduledRequest) -> None:
        """Note that a request has come."""

    def served(self, tenant: str, num_prompt_tokens: int, num_output_tokens: int) -> None:
        """Charge a tenant for tokens; negative numbers are a refund."""

    def left(self, request: ScheduledRequest) -> None:
        """Note that a request has ended."""


class _PreemptsLast:
    """Preempts the last request in order, so that the first always finishes."""

    def victim(self, running: Sequence[ScheduledRequest]) -> ScheduledRequest:
        return running[-1]


class FirstComeFirstServed(_PreemptsLast):
    """Orders by arrival."""

    def order(self, request: ScheduledRequest) -> tuple[float, ...]:
        return (request.arrived_at,)


class Priority(_PreemptsLast):
    """Orders by the request's `priority`, lower first; `AGEING` seconds of waiting are worth one step of it."""

    AGEING = 10.0

    def order(self, request: ScheduledRequest) -> tuple[float, ...]:
        return (request.arrived_at + self.AGEING * request.priority,)


class ShortestFirst(_PreemptsLast):
    """Orders by the most tokens to compute, prompt and output; a second of waiting is worth `AGEING` of them."""

    AGEING = 100.0

    def order(self, request: ScheduledRequest) -> tuple[float, ...]:
        return (request.max_total + self.AGEING * request.arrived_at,)


class Deadline(_PreemptsLast):
    """Orders by deadline, the earliest first (Liu and Layland, 1973). A request without one gets `DEFAULT`
    seconds.
    """

    DEFAULT = 60.0

    def order(self, request: ScheduledRequest) -> tuple[float, ...]:
        return (min(request.deadline, request.arrived_at + self.DEFAULT),)


class FairShare:
    """Orders tenants by what they have been given: Virtual Token Counter (Sheng et al., 2024: Fairness in
    Serving Large Language Models). An output token counts as `OUTPUT_WEIGHT` prompt tokens.

    A tenant that comes back is lifted to the lowest counter of tenants with requests, so that no tenant saves
    up turns. If there are none, it is lifted to the counter of the tenant that left last. A tenant whose
    requests another scheduler had is not lifted: it comes with what it was given.
    """

    OUTPUT_WEIGHT = 2.0

    def __init__(self) -> None:
        self._counters: dict[str, float] = {}
        # Open requests of each tenant.
        self._open: dict[str, int] = {}
        # A heap of the tenants with requests, by rank; entries may be outdated.
        self._ranks: list[tuple[float, str]] = []
        # The rank of each tenant's valid entry in `_ranks`.
        self._listed: dict[str, float] = {}
        # A heap of the other tenants whose counters are kept. A tenant has one entry, which may be too low.
        self._idle: list[tuple[float, str]] = []
        # The tenants with an entry in `_idle`, some of which may have come back.
        self._idle_tenants: set[str] = set()
        # The counter of the tenant that left last.
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
            # The tenant is gone, and is lifted to the others' counters when it comes back.
            return
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
        if tenant not in self._idle_tenants:
            self._idle_tenants.add(tenant)
            heapq.heappush(self._idle, (self._last, tenant))
        least = self._least()
        # A tenant with a lower counter would be lifted when it comes back, so that its counter can be forgotten.
        while self._idle and self._idle[0][0] <= least:
            _, tenant = heapq.heappop(self._idle)
            if tenant not in self._open and self.rank(tenant) > least:
                heapq.heappush(self._idle, (self.rank(tenant), tenant))
                continue
            self._idle_tenants.remove(tenant)
            if tenant not in self._open:
                self._counters.pop(tenant, None)

    def _least(self) -> float:
        """Return the lowest counter of tenants with requests, else that of the tenant that left last."""
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


_FAILED: WeakSet[Policy] = WeakSet()
"""Policies of which a failure was logged."""


def victim_of(policy: Policy, candidates: Sequence[ScheduledRequest]) -> ScheduledRequest:
    """Return the request that a policy has preempted. Where it fails, the last is; the first failure is logged."""
    try:
        return candidates[candidates.index(policy.victim(candidates))]
    except Exception as error:  # a policy may be anybody's
        if policy not in _FAILED:
            _FAILED.add(policy)
            kind = type(policy).__qualname__
            log.warning("the policy %s chose no victim: %r; the last in order are taken", kind, error)
        return candidates[-1]


def make_policy(name: str) -> Policy:
    """Return the policy of that name, or of the class that `module:Class` or a plugin's name stands for.

    Raises:
        TopologyError: there is neither.
    """
    place = "actors.scheduler.options.policy"
    if name in POLICIES:
        return POLICIES[name]()
    if ":" not in name and name not in plugins_of("policies"):
        known = ", ".join((*POLICIES, *plugins_of("policies")))
        raise TopologyError(place, f"no policy {name!r}; expected {known} or module:Class")
    policy = load_object(name, place, "policies")()
    for method in ("order", "victim"):
        if not callable(getattr(policy, method, None)):
            raise TopologyError(place, f"{name!r} has no method {method!r}, which a policy needs")
    checked: Policy = policy
    return checked
