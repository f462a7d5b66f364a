"""Routing policies: which replica a request goes to. docs/writing-a-router.md says how to write one.

A policy that fails, or returns none of the replicas that it was given, is passed over for that request: the least
laden replica gets it.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

import msgspec

from pageant.actors.runtime.classes import load_object
from pageant.protocol.checks import expected
from pageant.protocol.errors import TopologyError
from pageant.protocol.plugins import plugins_of

OUTPUT_TOKENS = 64
"""Tokens of an output, where none has ended yet."""
BUSY_SECONDS = 0.5
"""Seconds that a replica that was busy all the time lately counts for: prefixes settle where there is room for more."""
WORK_WEIGHT = 1.0
"""Weight of a request's own computation beside its wait. Others that come later wait for it, too."""
EQUAL = 1.03
"""Replicas whose costs differ by less are as good as equal."""


class RoutedRequest(msgspec.Struct, frozen=True):
    """A request that is to be routed."""

    num_tokens: int
    """Tokens of its prompt."""
    max_tokens: int
    """The most tokens of its output; 0 sets no bound."""
    tenant: str
    prefix: bytes
    """The name of its prompt's first block; empty where it has none. Requests that begin alike have the same."""


class Candidate(msgspec.Struct, frozen=True):
    """A replica that takes requests."""

    name: str
    """Its prefix, such as `replica-0/`."""
    cached_tokens: int
    """Tokens from the beginning of the prompt that it has, or is about to compute for another request."""
    waiting_tokens: int
    """Tokens that it is to compute before those that it has now are served; with what is on its way there."""
    running: int
    """Requests that hold memory there."""
    requests: int
    """Requests that were sent there so far."""
    seconds_per_token: float
    """Seconds that a token takes it."""
    output_tokens: float = OUTPUT_TOKENS
    """Mean tokens of the outputs there."""
    busy: float = 0.0
    """Share of the last seconds that the requests sent there take; above 1 where more came than it can compute."""

    @property
    def wait(self) -> float:
        """Return the seconds that a request waits there for others.

        It waits before it is computed, and in each of its own steps for those that run beside it.
        """
        return (self.waiting_tokens + self.output_tokens * self.running) * self.seconds_per_token


class RoutingPolicy:
    """Base of routing policies. An object serves one model, one request after another."""

    def choose(self, request: RoutedRequest, replicas: Sequence[Candidate]) -> Candidate:
        """Return one of these replicas, of which there is at least one."""
        raise NotImplementedError


class PrefixAware(RoutingPolicy):
    """Sends a request where the seconds of its wait and of its own computation are fewest.

    Waits and cached prefixes are in one unit. A prefix that everybody wants therefore spreads as soon as it is quicker
    to compute it once more than to wait where it is.
    """

    def choose(self, request: RoutedRequest, replicas: Sequence[Candidate]) -> Candidate:
        """Return the cheapest; of those that are equal, the one with most of the prompt, then by the prefix."""
        usual = sum(one.seconds_per_token for one in replicas) / len(replicas)
        costs = [one.wait + BUSY_SECONDS * one.busy + self.work(request, one, usual) for one in replicas]
        bound = min(costs) * EQUAL
        equal = [one for one, cost in zip(replicas, costs, strict=True) if cost <= bound]
        if len(equal) == 1:
            return equal[0]
        return max(equal, key=lambda one: (one.cached_tokens, -one.wait, _rank(request.prefix, one.name)))

    @staticmethod
    def work(request: RoutedRequest, replica: Candidate, usual: float) -> float:
        """Return the seconds that the prompt takes a replica, and what those are worth to others.

        Args:
            usual: the seconds that a token takes on the replicas' mean.
        """
        uncached = request.num_tokens - replica.cached_tokens
        return uncached * (replica.seconds_per_token + WORK_WEIGHT * usual)


class LeastLoaded(RoutingPolicy):
    """Sends a request where it waits least."""

    def choose(self, request: RoutedRequest, replicas: Sequence[Candidate]) -> Candidate:
        """Return the one with the shortest wait; of equal ones, the one that was sent fewest requests."""
        return min(replicas, key=lambda one: (one.wait, one.requests))


class RoundRobin(RoutingPolicy):
    """Sends requests to the replicas in turn."""

    def __init__(self) -> None:
        self._last = ""

    def choose(self, request: RoutedRequest, replicas: Sequence[Candidate]) -> Candidate:
        """Return the next one by name."""
        names = sorted(replicas, key=lambda one: (len(one.name), one.name))
        after = [one for one in names if (len(one.name), one.name) > (len(self._last), self._last)]
        chosen = (after or names)[0]
        self._last = chosen.name
        return chosen


class ByTenant(RoutingPolicy):
    """Sends all requests of a tenant to one replica, and few of them elsewhere when replicas come or go."""

    def choose(self, request: RoutedRequest, replicas: Sequence[Candidate]) -> Candidate:
        """Return the replica that the tenant's name ranks highest (rendezvous hashing)."""
        return max(replicas, key=lambda one: _rank(request.tenant.encode(), one.name))


def _rank(key: bytes, name: str) -> bytes:
    return blake2b(name.encode(), key=key[:64], digest_size=8).digest()


POLICIES: dict[str, type[RoutingPolicy]] = {
    "prefix": PrefixAware,
    "least": LeastLoaded,
    "round_robin": RoundRobin,
    "tenant": ByTenant,
}


def make_policy(name: str) -> RoutingPolicy:
    """Return the policy of that name, or of the class that `module:Class` or a plugin's name stands for.

    Raises:
        TopologyError: there is none, or it cannot choose.
    """
    place = "actors.router.options.routing"
    if name in POLICIES:
        return POLICIES[name]()
    if ":" not in name and name not in plugins_of("policies"):
        known = (*POLICIES, *plugins_of("policies"), "module:Class")
        raise TopologyError(place, f"no policy {name!r}; {expected(name, known)}")
    policy = load_object(name, place, "policies")()
    if not callable(getattr(policy, "choose", None)):
        raise TopologyError(place, f"{name!r} has no method 'choose', which a routing policy needs")
    checked: RoutingPolicy = policy
    return checked
