"""Leases: bound how long a node counts as alive without a message from it. Two cores: the root's, and a node's.

A node asks for a new lease once per heartbeat and counts it from when it asked. The root counts it from when it
received the request, which is later, and adds a heartbeat. A node that was cut off has therefore ended by the
time the root gives its actors to another node. The root kills a process of its own host at that time; any other
node ends by itself. Messages of a node without a lease are refused by incarnation, whenever it wakes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

# Interval of a node's first requests, until the root has told it the heartbeat.
ASK_SECONDS_FIRST = 0.1


@dataclass(frozen=True)
class LeaseTerms:
    """Durations of leases, in seconds."""

    heartbeat: float = 1.0
    """Time between two renewals."""
    suspicion: float = 10.0
    """Length of a lease."""

    @property
    def starting(self) -> float:
        """Return the lease of a node where an actor starts, in seconds: loading a library or weights may block
        its loop.
        """
        return 6 * self.suspicion


class Leases:
    """The root's leases: the time until which each life of a node counts as alive.

    All times are seconds of the caller's monotonic clock.
    """

    def __init__(self, terms: LeaseTerms) -> None:
        self.terms = terms
        # By node: its incarnation, and the end of each lease that it may still go by, by number.
        self._granted: dict[str, tuple[int, dict[int, float]]] = {}
        # The time of the last call of `lapsed`.
        self._looked_at = 0.0

    def grant(
        self,
        node: str,
        incarnation: int,
        now: float,
        *,
        starting: bool,
        number: int = 0,
        taken: int | None = 0,
    ) -> float:
        """Grant a lease and return its seconds.

        Earlier leases hold too until the node has taken a later one: it may miss this grant and go by a longer
        one.

        Args:
            starting: an actor starts there.
            number: the number of the request that is granted.
            taken: the last lease that the node has received. None where that does not matter, since the node is
                killed.
        """
        if not self._granted:
            self._looked_at = now
        seconds = self.terms.starting if starting else self.terms.suspicion
        until = now + seconds + self.terms.heartbeat
        life, granted = self._granted.get(node, (incarnation, {}))
        if taken is None or life != incarnation:
            granted = {}
        held = {of: end for of, end in granted.items() if of >= (taken or 0)}
        held[number] = until if number == taken else max(until, held.get(number, until))
        self._granted[node] = incarnation, held
        return seconds

    def end(self, node: str) -> None:
        """Forget a node's leases: its state is known."""
        self._granted.pop(node, None)

    def lapsed(self, now: float) -> list[tuple[str, int]]:
        """Return nodes whose leases are over, with their incarnations; each is named once.

        If the root itself was held up, it may not have read all messages: every lease is extended by that time.
        """
        held_up = now - self._looked_at - self.terms.heartbeat
        self._looked_at = now
        if held_up > self.terms.heartbeat:
            for _, granted in self._granted.values():
                granted.update({of: until + held_up for of, until in granted.items()})
        lapsed = [(node, life) for node, (life, _) in self._granted.items() if self.until(node) <= now]
        for node, _ in lapsed:
            del self._granted[node]
        return lapsed

    def until(self, node: str) -> float:
        """Return the end of a node's lease, as far as the node can know it."""
        return max(self._granted[node][1].values())

    @property
    def look_at(self) -> float | None:
        """Return the time of the next call of `lapsed`: once per heartbeat while any node holds a lease."""
        return self._looked_at + self.terms.heartbeat if self._granted else None


class Tenure:
    """A node's own lease, as it must count it. The first is granted unasked, before any actor starts there.

    All times are seconds of the caller's monotonic clock.
    """

    def __init__(self, now: float) -> None:
        self._heartbeat = ASK_SECONDS_FIRST
        self._until = math.inf
        self._asked = {0: now}
        self._number = 0
        # The number of the lease that the node goes by.
        self.taken = 0

    def ask(self, now: float) -> int:
        """Note that the node asks for a new lease. Return the number of the request."""
        self._number += 1
        self._asked[self._number] = now
        return self._number

    def granted(self, number: int, seconds: float, heartbeat: float) -> None:
        """Record a lease of `seconds` that the root granted for a request."""
        asked_at = self._asked.get(number)
        if asked_at is None:
            return
        self._heartbeat = heartbeat
        self._until, self.taken = asked_at + seconds, number
        self._asked = {other: at for other, at in self._asked.items() if other > number}

    def lapsed(self, now: float) -> bool:
        """Tell whether the lease is over."""
        return now >= self._until

    def next_in(self, now: float) -> float:
        """Return the seconds until the next renewal, or until the end of the lease."""
        left = self._until - now
        return min(self._heartbeat, left) if left > 0 else self._heartbeat
