"""The lives of an actor or a node: when the next one begins, and when there is none any more.

A death counts as early when it comes before the actor (or node) was ready or within `early_seconds` of it.
After `early_deaths_max` early deaths in a row it is given up, loudly; any other death is followed by a
restart: at once, or after a back-off that doubles with each early one. What was never up is given up sooner,
after `failed_starts_max`: what is wrong with it will most likely stay so, and somebody waits to hear of it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from pageant.actors.runtime.plans import ActorPlan, NodePlan
from pageant.protocol.supervision import Facts


@dataclass(frozen=True)
class RestartLimits:
    """When to restart and when to stop trying. Times in seconds."""

    failed_starts_max: int = 2
    early_deaths_max: int = 8  # a request that kills its executor takes three
    early_seconds: float = 5.0
    delay_first: float = 0.1
    delay_max: float = 5.0


@dataclass
class Life:
    """What actors and nodes have in common: lives that begin, get ready and end."""

    incarnation: int = 0
    alive: bool = False  # begun and not ended
    up: bool = False
    ready_since: float | None = None
    early_deaths: int = 0
    proven: bool = False  # it was up once; of a node, all that lives there was
    restarts: int = -1
    retry_at: float | None = None
    final: bool = False
    reason: str = ""
    traceback: str = ""

    def begin(self) -> int:
        assert not self.alive and not self.final
        self.alive = True
        self.incarnation += 1
        self.restarts += 1
        self.retry_at = None
        return self.incarnation

    def ready(self, now: float) -> None:
        self.up, self.ready_since, self.reason = True, now, ""

    def fall(self, reason: str) -> None:
        """An end that is no fault of its own, and is not counted against it."""
        self.alive, self.up, self.ready_since, self.retry_at, self.reason = False, False, None, None, reason

    def end(
        self, reason: str, traceback: str, now: float, limits: RestartLimits, *, permanent: bool = False
    ) -> None:
        """Record a death at `now`, and decide whether and when another life begins.

        Args:
            permanent: another start would fail the same way. What was never up is given up at once.
        """
        early = self.ready_since is None or now - self.ready_since < limits.early_seconds
        self.fall(reason)
        self.traceback = traceback
        self.early_deaths = self.early_deaths + 1 if early else 0
        most = limits.early_deaths_max if self.proven else limits.failed_starts_max
        self.final = self.early_deaths >= most or (permanent and not self.proven)
        if self.final:
            self.reason = f"{reason} (death {self.early_deaths} in a row)"
        delay = min(limits.delay_max, limits.delay_first * 2.0 ** (self.early_deaths - 1)) if early else 0.0
        self.retry_at = None if self.final else now + delay

    def forgive(self, deaths: int) -> None:
        """Count so many early deaths less."""
        self.early_deaths = max(0, self.early_deaths - deaths)


@dataclass
class ActorLife(Life):
    plan: ActorPlan = field(kw_only=True)
    features: tuple[str, ...] = ()
    facts: Facts = field(default_factory=dict)  # of its latest life that was ready
    device: str | None = None  # that it was given, if it wants any of a kind
    former: ActorPlan | None = None  # while it is not known whether its successor can start

    def give_way(self) -> None:
        """A successor that has not started is none: the former takes over again."""
        if self.former is not None:
            self.plan, self.former = self.former, None


@dataclass
class NodeLife(Life):
    plan: NodePlan = field(kw_only=True)
    endpoint: str = ""
    pid: int = 0
    suspicion: str = ""  # why it was fenced
    issued: int = 0  # the latest incarnation given to one that joins by itself
    expected_until: float = -math.inf  # that it joins under it
    devices: tuple[str, ...] = ()
