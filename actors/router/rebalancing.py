"""Advice on moving requests that run to another replica: where KV memory runs out, and another has some.

Outputs are longer or shorter than anybody knew when their requests were routed. The replica that happens to have the
long ones preempts some, and computes them again, while others have memory to spare.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

SHORT_OF_MEMORY = 0.9
"""Share of KV memory that a replica's requests need, from which on some of them move."""
GAP_MIN = 0.2
"""The least difference between the shares of two replicas that is worth a move."""
REST_SECONDS = 1.0
"""Time after a move in which neither replica takes part in another: their loads do not show the first one yet."""


class MemoryUse(NamedTuple):
    """The KV memory of a replica that takes requests."""

    name: str
    share: float
    """Share that its requests need; above 1 where some wait for memory."""
    num_tokens: int
    """Tokens that it holds; 0 while that is not known."""


class MoveAdvice(NamedTuple):
    """Advice to move requests."""

    source: str
    target: str
    num_tokens: int
    """The most tokens of all of them."""


class Rebalancer:
    """Evens out the KV memory that replicas need. Holds when each took part in a move."""

    def __init__(self) -> None:
        self._rests_until: dict[str, float] = {}
        """Seconds until which a replica rests, by name. Those that are over are dropped at the next advice."""

    def advise(self, replicas: Iterable[MemoryUse], now: float) -> MoveAdvice | None:
        """Return the move that is due at `now` seconds, and have both replicas rest."""
        found = [one for one in replicas if one.num_tokens]
        source = max(found, key=lambda one: one.share, default=None)
        if source is None or source.share < SHORT_OF_MEMORY:
            return None
        self._rests_until = {name: until for name, until in self._rests_until.items() if until > now}
        target = min(found, key=lambda one: one.share)
        gap = source.share - target.share
        if gap < GAP_MIN or {source.name, target.name} & self._rests_until.keys():
            return None
        self._rests_until |= dict.fromkeys((source.name, target.name), now + REST_SECONDS)
        return MoveAdvice(source.name, target.name, int(gap / 2 * min(source.num_tokens, target.num_tokens)))
