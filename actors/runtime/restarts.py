"""The root supervisor's decisions: which actor is started when, how often, and when restarts end.

A core: events in, instructions out; no clock, no processes. All times are seconds of the caller's monotonic
clock.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from pageant.actors.runtime.bonds import Bonds
from pageant.actors.runtime.device_placement import listed, place_by_device, unplaceable
from pageant.actors.runtime.devices import choose
from pageant.actors.runtime.instructions import (
    Fence,
    GiveUp,
    Instruction,
    Launch,
    Publish,
    Start,
    Stop,
)
from pageant.actors.runtime.lease import Leases, LeaseTerms
from pageant.actors.runtime.lives import ActorLife, NodeLife, RestartLimits
from pageant.actors.runtime.plans import ActorPlan, NodePlan
from pageant.actors.runtime.succession import Succession
from pageant.protocol.supervision import Directory, Facts

# The time for which a node that was given an incarnation is expected, before another may be given one.
JOINING_SECONDS_MAX = 10.0
# Prefix of the name of a node that only asks, such as `pageant swap`. No YAML can contain such a name.
VISITOR = "visitor:"


class Supervision(Succession):
    """State of every node and actor: alive, being started, or down for good. Times are seconds of a monotonic
    clock.

    Args:
        root: the node of the supervisor itself, which is up from the beginning.
        pid: the process of that node.
    """

    def __init__(
        self,
        root: str,
        root_endpoint: str,
        nodes: Sequence[NodePlan],
        actors: Sequence[ActorPlan],
        limits: RestartLimits | None = None,
        terms: LeaseTerms | None = None,
        pid: int = 0,
    ) -> None:
        self.limits = limits or RestartLimits()
        self.leases = Leases(terms or LeaseTerms())
        self.root = root
        self._nodes = {plan.name: NodeLife(plan=plan) for plan in nodes}
        self._actors = {plan.name: ActorLife(plan=plan) for plan in actors}
        self._bonds = Bonds(self._actors)
        self._version = self._visitors = 0
        root_state = self._nodes[root]
        root_state.begin()
        root_state.endpoint, root_state.pid = root_endpoint, pid

    def begin(self, now: float) -> list[Instruction]:
        """Launch every process and start the root's own actors."""
        instructions: list[Instruction] = []
        for node in self._nodes.values():
            if node.plan.process:
                instructions.append(self._launch(node, now))
        self._nodes[self.root].ready(now)
        return [*instructions, *self._start_actors_of(self.root), Publish()]

    def issue(self, node: str, now: float, *, gone: bool) -> int | None:
        """Return a new incarnation for a node that joins by itself, or 0 if no such node is expected.

        None while another node of that name may be alive: it may be cut off, and go on until its lease is over.
        A visitor may always come: it hosts no actors, and only asks.

        Args:
            gone: the former process is known to have ended.
        """
        if node.startswith(VISITOR):
            self._visitors += 1
            return self._visitors
        state = self._nodes.get(node)
        if state is None or not state.plan.joins:
            return 0
        if (state.alive and not gone) or now < state.expected_until:
            return None
        state.issued = max(state.issued, state.incarnation) + 1
        state.expected_until = now + JOINING_SECONDS_MAX
        return state.issued

    def launched(self, node: str, incarnation: int, now: float) -> None:
        """Note that the process of that life of a node runs; its first message is due before long."""
        state = self._nodes[node]
        if state.alive and not state.up and state.incarnation == incarnation:
            self._grant(state, now)

    def node_joined(
        self,
        node: str,
        incarnation: int,
        endpoint: str,
        now: float,
        pid: int = 0,
        devices: tuple[str, ...] = (),
    ) -> list[Instruction]:
        """Start the actors of a node that is up and linked to the root.

        A node that lacks the device that it must have gets no actors.
        """
        state = self._nodes.get(node)
        if state is None:
            return []
        stops: list[Stop] = []
        if state.plan.joins and state.incarnation < incarnation == state.issued:
            state.expected_until = -math.inf
            replaced = "its node was replaced"  # whose end nobody saw
            stops = self._bonds.fall(self._end_actors_of(node, replaced), replaced)
            state.mark_exited("replaced")
            state.begin()
            state.incarnation = incarnation
        if state.incarnation != incarnation or state.up or not state.alive:
            return [*stops]
        state.endpoint, state.pid, state.devices = endpoint, pid, devices
        state.suspicion = ""  # that it would not come
        state.ready(now)
        self._grant(state, now)
        wanted = state.plan.device
        if wanted is not None and choose(wanted, devices, ()) is None:
            return [
                *stops,
                Publish(),
                *self._refuse(node, f"node {node} is to have {wanted}; it has {listed(devices)}"),
            ]
        placed = place_by_device(self._actors.values(), self._nodes.values())
        begun = [*self._start_actors_of(node), *self._start(placed)]
        return [*stops, Publish(), *begun, *self._give_up_unplaced()]

    def _refuse(self, node: str, reason: str) -> list[Instruction]:
        """Mark all actors of a node as down for good."""
        ended = self._end_actors_of(node, reason)
        for actor in ended:
            actor.final = True
        stops = self._bonds.fall(ended, reason)
        return [*stops, *(GiveUp(actor.plan.name, 1, reason, "") for actor in ended)]

    def _give_up_unplaced(self) -> list[Instruction]:
        """Mark actors without a node as down for good once every node is there: no other will come."""
        given_up: list[Instruction] = []
        for actor, reason in unplaceable(self._actors.values(), self._nodes.values()):
            actor.mark_exited(reason)
            actor.final = True
            given_up.append(GiveUp(actor.plan.name, 1, reason, ""))
        return given_up

    def node_exited(
        self, node: str, incarnation: int, reason: str, now: float, traceback: str = ""
    ) -> list[Instruction]:
        """Record that the process of that life of a node has ended."""
        state = self._nodes.get(node)
        if state is None or state.incarnation != incarnation or not state.alive:
            return []
        self.leases.end(node)
        if state.suspicion:
            reason, state.suspicion = f"{state.suspicion}; {reason}", ""
        state.end(reason, traceback, now, self.limits)
        ended = self._end_actors_of(node, state.reason)
        for actor in ended:
            actor.final = state.final
        instructions: list[Instruction] = [*self._bonds.fall(ended, state.reason), Publish()]
        for actor in ended:
            if state.final:
                trace = traceback or actor.traceback
                instructions.append(GiveUp(actor.plan.name, state.early_deaths, reason, trace))
        return instructions

    def renewed(
        self, node: str, incarnation: int, now: float, number: int = 0, taken: int = 0
    ) -> float | None:
        """Grant that life of a node a lease and return its seconds; None if the life is over.

        Args:
            number, taken: see `RenewLease`.
        """
        state = self._nodes.get(node)
        if state is None or state.incarnation != incarnation or not state.up or state.suspicion:
            return None
        return self._grant(state, now, number, taken)

    def _grant(self, node: NodeLife, now: float, number: int = 0, taken: int = 0) -> float:
        plan = node.plan
        starting = not node.up or any(actor.alive and not actor.up for actor in self._actors_of(plan.name))
        life = plan.name, node.incarnation
        known = None if plan.process else taken
        return self.leases.grant(*life, now, starting=starting, number=number, taken=known)

    def _lease_over(self, node: str, incarnation: int) -> list[Instruction]:
        """Act on a lease that is over. A node that cannot be killed has ended itself by now."""
        state = self._nodes[node]
        assert state.alive and state.incarnation == incarnation, "only the living hold leases"
        reason = "it was not heard of in time"
        if state.plan.process:
            state.suspicion = reason
            return [Fence(node, incarnation, reason)]
        state.mark_exited(reason)
        stops = self._bonds.fall(self._end_actors_of(node, reason), reason)
        return [*stops, Publish(), *self._start(place_by_device(self._actors.values(), self._nodes.values()))]

    def _launch(self, node: NodeLife, now: float) -> Launch:
        launch = Launch(node.plan.name, node.begin())
        self._grant(node, now)
        return launch

    def _end_actors_of(self, node: str, reason: str) -> list[ActorLife]:
        """End the lives of a node's actors, except those that are down for good. Return them."""
        ended = [actor for actor in self._actors_of(node) if not actor.final]
        for actor in ended:
            actor.restore_former()
            actor.mark_exited(reason)
            # Any other node with such a device will do.
            if actor.plan.device is not None:
                actor.plan, actor.device = replace(actor.plan, node=""), None
        return ended

    def _actors_of(self, node: str) -> list[ActorLife]:
        return [actor for actor in self._actors.values() if actor.plan.node == node]

    def actor_started(
        self,
        name: str,
        incarnation: int,
        features: tuple[str, ...],
        now: float,
        facts: Facts | None = None,
    ) -> list[Instruction]:
        """Record that an actor is ready; `features` and `facts` are as in `ActorStarted`."""
        actor = self._actors.get(name)
        if actor is None or actor.incarnation != incarnation or not actor.alive:
            return []
        actor.features, actor.facts = features, dict(facts or {})
        actor.ready(now)
        actor.proven = True
        self._succeeded(actor)
        node = self._nodes[actor.plan.node]
        # The node lives, and its loop is not held up by a start any more.
        if node.plan.process and not node.suspicion:
            self._grant(node, now)
        node.proven = node.proven or all(one.proven for one in self._actors_of(node.plan.name))
        return [Publish()]

    def actor_changed(self, name: str, incarnation: int, facts: Facts) -> list[Instruction]:
        """Record that an actor that is up has new facts."""
        actor = self._actors.get(name)
        if actor is None or actor.incarnation != incarnation or not actor.up or actor.facts == facts:
            return []
        actor.facts = dict(facts)
        return [Publish()]

    def actor_failed(
        self,
        name: str,
        incarnation: int,
        error: str,
        traceback: str,
        now: float,
        *,
        permanent: bool = False,
        ends_process: bool = False,
    ) -> list[Instruction]:
        """Decide what follows the death of an actor, or of its group; see `ActorFailed`."""
        actor = self._actors.get(name)
        if actor is None or actor.incarnation != incarnation or not actor.alive:
            return []
        if ends_process:
            self._nodes[actor.plan.node].is_ending = True
        # A successor that failed to start is no death of the former actor.
        if actor.former is not None:
            return self.roll_back(name, error)
        stops = self._bonds.end(actor, error, traceback, now, self.limits, permanent=permanent)
        deaths = self._bonds.members(actor)[0].early_deaths
        give_up: list[Instruction] = [GiveUp(name, deaths, error, traceback)] if actor.final else []
        return [*stops, Publish(), *give_up]

    def actor_stopped(self, name: str, incarnation: int) -> list[Instruction]:
        """Record that a life which was ordered to end is over: its group may be waiting for that."""
        return self._start(self._bonds.stopped(name, incarnation))

    def is_alive(self, name: str, incarnation: int) -> bool:
        """Tell whether this life of an actor goes on, as far as is known here."""
        actor = self._actors.get(name)
        return actor is not None and actor.alive and actor.incarnation == incarnation

    def charged(self, name: str, deaths: int) -> None:
        """Take `deaths` off the early deaths of an actor, or of each of a group, and of its node
        (`DeathsCharged`).
        """
        for actor in self._bonds.named(name):
            actor.forgive(deaths)
            if (node := self._nodes.get(actor.plan.node)) is not None:
                node.forgive(deaths)

    def tick(self, now: float) -> list[Instruction]:
        """Carry out the restarts that are due."""
        instructions: list[Instruction] = []
        for node in self._nodes.values():
            if node.retry_at is not None and node.retry_at <= now:
                instructions.append(self._launch(node, now))
        for name, incarnation in self.leases.lapsed(now):
            instructions += self._lease_over(name, incarnation)
        for actor in self._actors.values():
            if actor.retry_at is not None and actor.retry_at <= now:
                actor.retry_at = None  # a group whose nodes are not all up begins when they are
                instructions += self._start([actor])
        return instructions

    def wake_at(self) -> float | None:
        """Return the time at which `tick` is next worth calling, or None."""
        times = [life.retry_at for life in (*self._nodes.values(), *self._actors.values())]
        return min((time for time in (*times, self.leases.look_at) if time is not None), default=None)

    def all_up(self) -> bool:
        """Tell whether every actor takes messages."""
        return all(actor.up for actor in self._actors.values())

    def directory(self) -> Directory:
        """Return all nodes and actors as of now, under a new version."""
        self._version += 1
        return Directory(
            version=self._version,
            nodes=tuple(node.entry() for node in self._nodes.values() if node.up),
            actors=tuple(actor.entry() for actor in self._actors.values()),
        )

    def modules(self) -> list[str]:
        """Return the modules of this package's own actors. A user's modules may change on disk before they are
        needed.
        """
        modules = {actor.plan.cls.partition(":")[0]: None for actor in self._actors.values()}
        return [module for module in modules if module.startswith("pageant.")]

    def nodes_up(self) -> list[str]:
        """Return the names of the nodes that are up."""
        return [name for name, node in self._nodes.items() if node.up]

    def _start_actors_of(self, node: str) -> list[Instruction]:
        return self._start(self._actors_of(node))

    def _start(self, actors: Iterable[ActorLife]) -> list[Instruction]:
        """Begin the next life of actors that are down, each with its group."""
        nodes = self._nodes
        begun = self._bonds.rising(actors, lambda node: node in nodes and nodes[node].takes_actors)
        return [Start(actor.plan.node, actor.order()) for actor in begun]
