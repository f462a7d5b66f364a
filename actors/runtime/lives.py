"""Lives of an actor or a node: when the next one begins, and when no other does.

A death is early when it comes before the actor (or node) was ready, or within `early_seconds` of that. After
`early_deaths_max` early deaths in a row no other life begins, which is logged. Any other death is followed by a
restart: at once, or after a back-off that doubles with each early death. A start that never succeeded is
retried only `failed_starts_max` times: the cause will most likely remain, and the user waits for the error.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from pageant.actors.runtime.plans import ActorPlan, NodePlan
from pageant.protocol.replicas import DRAINING
from pageant.protocol.supervision import ActorEntry, Facts, NodeEntry, StartActor


@dataclass(frozen=True)
class RestartLimits:
    """Limits of restarts. Times in seconds."""

    failed_starts_max: int = 2
    early_deaths_max: int = 8
    """Early deaths in a row before the last one is final. A request that kills its executor takes three."""
    early_seconds: float = 5.0
    delay_first: float = 0.1
    delay_max: float = 5.0


@dataclass
class Life:
    """Common state of actors and nodes: lives begin, become ready and end. Times are seconds of a monotonic
    clock.

    `alive` is True from `begin` to the end of that life; `up` implies `alive`; `final` excludes both.
    """

    incarnation: int = 0
    """The number of the latest life; 0 before the first."""
    alive: bool = False
    """The life has begun and not ended."""
    up: bool = False
    """The life is ready."""
    ready_since: float | None = None
    """The time at which this life became ready; None while it is not."""
    early_deaths: int = 0
    """Early deaths in a row."""
    proven: bool = False
    """An earlier life was ready; for a node, those of all its actors were."""
    restarts: int = -1
    """Lives after the first; -1 before the first."""
    retry_at: float | None = None
    """The time at which the next life begins; None while one lives, or when no other begins."""
    final: bool = False
    """No other life begins."""
    reason: str = ""
    """Why the last life ended; "" while one is up."""
    traceback: str = ""
    """The traceback of the last death."""

    def begin(self) -> int:
        """Begin the next life and return its incarnation."""
        assert not self.alive and not self.final
        self.alive = True
        self.incarnation += 1
        self.restarts += 1
        self.retry_at = None
        return self.incarnation

    def ready(self, now: float) -> None:
        """Note that this life is ready, at `now` seconds."""
        self.up, self.ready_since, self.reason = True, now, ""

    def mark_exited(self, reason: str) -> None:
        """End this life without counting it as a death: the end is no fault of its own."""
        self.alive, self.up, self.ready_since, self.retry_at, self.reason = False, False, None, None, reason

    def end(
        self, reason: str, traceback: str, now: float, limits: RestartLimits, *, permanent: bool = False
    ) -> None:
        """Record a death at `now` seconds, and decide whether and when another life begins.

        Args:
            permanent: another start would fail the same way. If no life was ever ready, this death is final.
        """
        early = self.ready_since is None or now - self.ready_since < limits.early_seconds
        self.mark_exited(reason)
        self.traceback = traceback
        self.early_deaths = self.early_deaths + 1 if early else 0
        most = limits.early_deaths_max if self.proven else limits.failed_starts_max
        self.final = self.early_deaths >= most or (permanent and not self.proven)
        if self.final:
            self.reason = f"{reason} (death {self.early_deaths} in a row)"
        delay = min(limits.delay_max, limits.delay_first * 2.0 ** (self.early_deaths - 1)) if early else 0.0
        self.retry_at = None if self.final else now + delay

    def forgive(self, deaths: int) -> None:
        """Take `deaths` off the early deaths."""
        self.early_deaths = max(0, self.early_deaths - deaths)


@dataclass
class ActorLife(Life):
    """State of an actor."""

    plan: ActorPlan = field(kw_only=True)
    features: tuple[str, ...] = ()
    facts: Facts = field(default_factory=dict)
    """Facts of the latest life that was ready."""
    device: str | None = None
    """The device that it was given, if it wants any of a kind."""
    draining: int = 0
    """How far its replica is being drained; see `pageant.protocol.replicas.DRAINING`."""
    former: ActorPlan | None = None
    """The plan before a swap, until the successor has started; else None."""
    is_stopping: bool = False
    """Its node was ordered to end its last life, and has not said that it is over. The process may end with it."""

    def mark_exited(self, reason: str) -> None:
        """See `Life`."""
        super().mark_exited(reason)
        self.is_stopping = False

    def restore_former(self) -> None:
        """Restore the former plan if a successor has not started."""
        if self.former is not None:
            self.plan, self.former = self.former, None

    def order(self) -> StartActor:
        """Return the order to start this life, for the agent of its node."""
        plan = self.plan
        return StartActor(
            name=plan.name,
            incarnation=self.incarnation,
            cls=plan.cls,
            options=plan.options,
            folder=plan.folder,
        )

    def entry(self) -> ActorEntry:
        """Return the actor as a directory names it."""
        return ActorEntry(
            name=self.plan.name,
            node=self.plan.node,
            incarnation=self.incarnation,
            up=self.up,
            features=self.features,
            facts={**self.facts, DRAINING: self.draining} if self.draining else self.facts,
            reason=self.reason,
            final=self.final,
            restarts=max(0, self.restarts),
        )


@dataclass
class NodeLife(Life):
    """State of a node."""

    plan: NodePlan = field(kw_only=True)
    endpoint: str = ""
    pid: int = 0
    suspicion: str = ""
    """Why the node was fenced; "" if it was not."""
    is_ending: bool = False
    """The process of this life ends by itself, since an actor left it unusable: nothing starts there."""
    issued: int = 0
    """The latest incarnation given to a node that joins by itself."""
    expected_until: float = -math.inf
    """The time until which that node is expected to join under `issued`."""
    devices: tuple[str, ...] = ()

    def begin(self) -> int:
        """See `Life`."""
        self.is_ending = False
        return super().begin()

    @property
    def takes_actors(self) -> bool:
        """Tell whether actors can start there."""
        return self.up and not self.is_ending

    def entry(self) -> NodeEntry:
        """Return the node as a directory names it."""
        return NodeEntry(
            name=self.plan.name, incarnation=self.incarnation, endpoint=self.endpoint, pid=self.pid
        )
