"""Leases: how long a node is taken to be alive without a word from it. Two cores: the root's, and a node's.

A node asks for its lease to be renewed once per heartbeat, and counts it from when it asked; the root counts it from
when it heard, which is later, and adds a heartbeat. So a node that was cut off has ended by the time the root gives
its actors to another. What the root can kill (a process of this host) it kills then; any other ends by itself.
Messages of a node without a lease are fenced off by incarnation, whenever it wakes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

ASK_SECONDS_FIRST = 0.1  # between a node's first words, until it has heard how often it is to be heard of


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
        # By node: its incarnation, and by number until when it may go by that lease.
        self._granted: dict[str, tuple[int, dict[int, float]]] = {}
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
        """Returns for how many seconds. What was granted before holds too, until the node has taken a later lease: it
        may not hear of this one, and go by one that was longer.

        Args:
            starting: an actor starts there.
            number: under which the node hears of this.
            taken: of the last that it has heard of. None where it does not matter what it goes by: it is killed.
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
        """It is known how that node is."""
        self._granted.pop(node, None)

    def lapsed(self, now: float) -> list[tuple[str, int]]:
        """Nodes that have not been heard of in time, with their incarnations; each is named once.

        If the root itself was held up, there may be news that it has not read: everybody gets that time back.
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
        """When that node's lease is over, as far as it can know."""
        return max(self._granted[node][1].values())

    @property
    def look_at(self) -> float | None:
        """When `lapsed` is to be called next: once per heartbeat while anybody holds a lease."""
        return self._looked_at + self.terms.heartbeat if self._granted else None


class Tenure:
    """A node's own lease, as it must count it. The first is granted unasked, before any actor starts there."""

    def __init__(self, now: float) -> None:
        self._heartbeat = ASK_SECONDS_FIRST
        self._until = math.inf
        self._asked = {0: now}
        self._number = 0
        self.taken = 0  # the number of the lease that it goes by

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
        self._until, self.taken = asked_at + seconds, number
        self._asked = {other: at for other, at in self._asked.items() if other > number}

    def lapsed(self, now: float) -> bool:
        """Whether it is over."""
        return now >= self._until

    def next_in(self, now: float) -> float:
        """Seconds until there is something to do."""
        left = self._until - now
        return min(self._heartbeat, left) if left > 0 else self._heartbeat
