"""Who goes first, and who gives way. A policy is a small class; name your own in YAML:

actors:
  scheduler: {options: {policy: my_lab.policies:ShortestFirst}}
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from pageant.actors.runtime.classes import load_object
from pageant.actors.scheduler.request import ScheduledRequest
from pageant.protocol.errors import TopologyError


class Policy(Protocol):
    """Decides order. Must be a pure function of what it is given."""

    def order(self, request: ScheduledRequest) -> tuple[float, ...]:
        """The key by which waiting requests are admitted and running ones are served: smallest first.

        Asked once, when a request comes; ties go by arrival.
        """

    def victim(self, running: Sequence[ScheduledRequest]) -> ScheduledRequest:
        """Who is preempted when memory runs out, of requests in the policy's order."""


class FirstComeFirstServed:
    """By arrival. Who came last gives way, so that whoever came first always finishes."""

    def order(self, request: ScheduledRequest) -> tuple[float, ...]:
        return (float(request.arrival),)

    def victim(self, running: Sequence[ScheduledRequest]) -> ScheduledRequest:
        return running[-1]


POLICIES: dict[str, type[Policy]] = {"fcfs": FirstComeFirstServed}


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
