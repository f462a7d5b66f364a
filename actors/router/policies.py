"""Routing policies: which replica a request goes to. docs/writing-a-router.md says how to write one.

A policy that fails, or returns none of the replicas that it was given, is passed over for that request: the least
laden replica gets it.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

import msgspec
import numpy as np
import numpy.typing as npt

from pageant.actors.router.candidates import Candidate as Candidate
from pageant.actors.router.candidates import Candidates, Floats
from pageant.actors.runtime.classes import load_object
from pageant.protocol.checks import expected
from pageant.protocol.errors import TopologyError
from pageant.protocol.plugins import plugins_of

BUSY_SECONDS = 0.5
"""Seconds that a replica that was busy all the time lately counts for: prefixes settle where there is room for more."""
WORK_WEIGHT = 1.0
"""Weight of a request's own computation beside its wait. Others that come later wait for it, too."""
EQUAL = 1.03
"""Replicas whose costs differ by less are as good as equal."""

Hashes = npt.NDArray[np.uint64]


class RoutedRequest(msgspec.Struct, frozen=True):
    """A request that is to be routed."""

    num_tokens: int
    """Tokens of its prompt."""
    max_tokens: int
    """The most tokens of its output; 0 sets no bound."""
    tenant: str
    prefix: bytes
    """The name of its prompt's first block; empty where it has none. Requests that begin alike have the same."""


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

    def __init__(self) -> None:
        # Names of the replicas that were ranked last, and their hashes.
        self._names: Sequence[str] = ()
        self._hashes: Hashes = np.zeros(0, np.uint64)

    def choose(self, request: RoutedRequest, replicas: Sequence[Candidate]) -> Candidate:
        """Return the cheapest; of those that are equal, the one with most of the prompt, then by the prefix."""
        some = Candidates.of(replicas)
        waits = some.wait
        costs = waits + BUSY_SECONDS * some.busy + self.work(request, some)
        equal = np.flatnonzero(costs <= costs.min() * EQUAL)
        for preferred in (some.cached_tokens, -waits):
            if len(equal) > 1:
                best = preferred[equal]
                equal = equal[best == best.max()]
        if len(equal) > 1:
            ranks = _mixed(self._hashes_of(some.name)[equal] ^ _hash(request.prefix))
            equal = equal[ranks.argmax() :]
        return some[int(equal[0])]

    def _hashes_of(self, names: Sequence[str]) -> Hashes:
        """Return a hash of each name: uint64 [N]. The same names need not be hashed again."""
        if names is not self._names:
            self._names, self._hashes = names, np.array([_hash(one.encode()) for one in names], np.uint64)
        return self._hashes

    @staticmethod
    def work(request: RoutedRequest, replicas: Candidates) -> Floats:
        """Return the seconds that the prompt takes each replica, and what those are worth to others: float64 [N]."""
        seconds = replicas.seconds_per_token
        uncached = request.num_tokens - replicas.cached_tokens
        work: Floats = uncached * (seconds + WORK_WEIGHT * seconds.mean())
        return work


class LeastLoaded(RoutingPolicy):
    """Sends a request where it waits least."""

    def choose(self, request: RoutedRequest, replicas: Sequence[Candidate]) -> Candidate:
        """Return the one with the shortest wait; of equal ones, the one that was sent fewest requests."""
        some = Candidates.of(replicas)
        waits = some.wait
        equal = np.flatnonzero(waits == waits.min())
        return some[int(equal[some.requests[equal].argmin()])]


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


def _hash(key: bytes) -> np.uint64:
    return np.uint64(int.from_bytes(blake2b(key, digest_size=8).digest(), "little"))


def _mixed(keys: Hashes) -> Hashes:
    """Return numbers in which each bit of a key changes about half of the bits (the finalizer of MurmurHash3)."""
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        keys = (keys ^ (keys >> np.uint64(33))) * np.uint64(factor)
    return keys ^ (keys >> np.uint64(33))


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
    if ":" not in name and name not in plugins_of("routing"):
        known = (*POLICIES, *plugins_of("routing"), "module:Class")
        raise TopologyError(place, f"no policy {name!r}; {expected(name, known)}")
    policy = load_object(name, place, "routing")()
    if not callable(getattr(policy, "choose", None)):
        raise TopologyError(place, f"{name!r} has no method 'choose', which a routing policy needs")
    checked: RoutingPolicy = policy
    return checked
