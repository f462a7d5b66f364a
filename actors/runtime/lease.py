"""Leases: how long a node is taken to be alive without a word from it. Two cores: the root's, and a node's.

A node asks for its lease to be renewed once per heartbeat, and counts it from when it asked; the root counts it from
when it heard, which is later, and adds a heartbeat. So a node that was cut off has ended by the time the root gives
its actors to another. What the root can kill (a process of this host) it kills then; any other ends by itself.
Messages of a node without a lease are fenced off by incarnation, whenever it wakes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class LeaseTerms:
    """Times in seconds."""

    heartbeat: float = 1.0
    suspicion: float = 10.0

    @property
    def starting(self) -> float:
        """The lease of a node where an actor starts: to load a library or weights may hold up its loop."""
        return 6 * self.suspicion


class Leases:
    """The root's: until when each life of a node is waited for."""

    def __init__(self, terms: LeaseTerms) -> None:
        self.terms = terms
        self._until: dict[str, tuple[int, float]] = {}  # by node: its incarnation, and when it lapses
        self._looked_at = 0.0

    def grant(self, node: str, incarnation: int, now: float, *, starting: bool, fence: bool) -> float:
        """Returns for how many seconds.

        Args:
            starting: an actor starts there.
            fence: the root will kill it. What it cannot kill may not hear of a shorter lease than it had.
        """
        if not self._until:
            self._looked_at = now
        seconds = self.terms.starting if starting else self.terms.suspicion
        until = now + seconds + self.terms.heartbeat
        former, former_until = self._until.get(node, (0, 0.0))
        self._until[node] = incarnation, until if fence or former != incarnation else max(until, former_until)
        return seconds

    def end(self, node: str) -> None:
        """It is known how that node is."""
        self._until.pop(node, None)

    def lapsed(self, now: float) -> list[tuple[str, int]]:
        """Nodes that have not been heard of in time, with their incarnations; each is named once.

        If the root itself was held up, there may be news that it has not read: everybody gets that time back.
        """
        held_up = now - self._looked_at - self.terms.heartbeat
        self._looked_at = now
        if held_up > self.terms.heartbeat:
            self._until = {node: (life, until + held_up) for node, (life, until) in self._until.items()}
        lapsed = [(node, life) for node, (life, until) in self._until.items() if until <= now]
        for node, _ in lapsed:
            del self._until[node]
        return lapsed

    @property
    def look_at(self) -> float | None:
        """When `lapsed` is to be called next: once per heartbeat while anybody holds a lease."""
        return self._looked_at + self.terms.heartbeat if self._until else None


class Tenure:
    """A node's own lease, as it must count it. The first is granted unasked, before any actor starts there."""

    def __init__(self, now: float) -> None:
        self._heartbeat = LeaseTerms.heartbeat
        self._until = math.inf
        self._asked = {0: now}
        self._number = 0

    def ask(self, now: float) -> int:
        """It asks for its lease to be renewed. Returns the number of this."""
        self._number += 1
        self._asked[self._number] = now
        return self._number

    def granted(self, number: int, seconds: float, heartbeat: float) -> None:
        """The root heard that number."""
        asked_at = self._asked.get(number)
        if asked_at is None:
            return
        self._heartbeat = heartbeat
        self._until = asked_at + seconds
        self._asked = {other: at for other, at in self._asked.items() if other > number}

    def lapsed(self, now: float) -> bool:
        """Whether it is over."""
        return now >= self._until

    def next_in(self, now: float) -> float:
        """Seconds until there is something to do."""
        left = self._until - now
        return min(self._heartbeat, left) if left > 0 else self._heartbeat
