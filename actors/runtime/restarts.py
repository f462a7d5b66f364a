"""The root supervisor's decisions: who is started when, how often, and when to give up. A core: events in,
instructions out; no clock, no processes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from pageant.actors.runtime.devices import CPU, choose
from pageant.actors.runtime.lease import Leases, LeaseTerms
from pageant.actors.runtime.lives import ActorLife, NodeLife, RestartLimits
from pageant.actors.runtime.plans import ActorPlan, NodePlan
from pageant.protocol.supervision import SWAPPED, ActorEntry, Directory, Facts, NodeEntry, StartActor

JOINING_SECONDS_MAX = 10.0  # for a node that has been given an incarnation, before another may be
VISITOR = "visitor:"  # begins the name of a node that only asks, such as `pageant swap`; no YAML can say it


@dataclass(frozen=True)
class Launch:
    """Start the process of a node."""

    node: str
    incarnation: int


@dataclass(frozen=True)
class Start:
    """Have a node's agent start an actor."""

    node: str
    order: StartActor


@dataclass(frozen=True)
class GiveUp:
    """Something will not be started again. `who` is an actor or a node."""

    who: str
    deaths: int
    error: str
    traceback: str


@dataclass(frozen=True)
class Fence:
    """Kill the process of a node that has not been heard of: it may be stopped, and wake at any time."""

    node: str
    incarnation: int
    reason: str


@dataclass(frozen=True)
class Publish:
    """Tell every node who is there now."""


Instruction = Launch | Start | GiveUp | Fence | Publish


class Supervision:
    """Who lives, who is being started, and who was given up.

    Args:
        root: the node of the supervisor itself, which is there from the beginning.
        pid: of its process.
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
        self._version = self._visitors = 0
        root_state = self._nodes[root]
        root_state.begin()
        root_state.endpoint, root_state.pid = root_endpoint, pid

    def begin(self, now: float) -> list[Instruction]:
        """Launches every process and starts the root's own actors."""
        instructions: list[Instruction] = []
        for node in self._nodes.values():
            if node.plan.process:
                instructions.append(self._launch(node, now))
        self._nodes[self.root].ready(now)
        return [*instructions, *self._start_actors_of(self.root), Publish()]

    def issue(self, node: str, now: float, *, gone: bool) -> int | None:
        """A new incarnation for a node that joins by itself, or 0 if none of that name is expected. A visitor may
        always come: it hosts no actors, and asks.

        None while another of that name may be alive: it may be cut off, and go on until its lease is over.

        Args:
            gone: the former one's process is known to have ended.
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
        """The process of that life of a node runs, and is heard of before long."""
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
        """A node is up, and linked to the root. One that lacks the device that it is there for gets no actors."""
        state = self._nodes.get(node)
        if state is None:
            return []
        if state.plan.joins and state.incarnation < incarnation == state.issued:
            state.expected_until = -math.inf
            self._end_actors_of(node, "its node was replaced")  # whose end nobody saw
            state.fall("replaced")
            state.begin()
            state.incarnation = incarnation
        if state.incarnation != incarnation or state.up or not state.alive:
            return []
        state.endpoint, state.pid, state.devices = endpoint, pid, devices
        state.suspicion = ""  # that it would not come
        state.ready(now)
        self._grant(state, now)
        wanted = state.plan.device
        if wanted is not None and choose(wanted, devices, ()) is None:
            return [
                Publish(),
                *self._refuse(node, f"node {node} is to have {wanted}; it has {_listed(devices)}"),
            ]
        self._settle()
        return [Publish(), *self._start_actors_of(node), *self._still_homeless()]

    def _refuse(self, node: str, reason: str) -> list[Instruction]:
        """Nothing that was to live there is started."""
        given_up: list[Instruction] = []
        for actor in self._end_actors_of(node, reason):
            actor.final = True
            given_up.append(GiveUp(actor.plan.name, 1, reason, ""))
        return given_up

    def _settle(self) -> list[ActorLife]:
        """Actors that want a device, and have no home, get one of those that are free. Returns those that did."""
        settled = []
        for actor in self._actors.values():
            wanted = actor.plan.device
            if wanted is None or actor.plan.node or actor.final:
                continue
            for name, node in self._nodes.items():
                if not (node.up and node.plan.joins):
                    continue
                taken = {one.device for one in self._actors_of(name) if one.device is not None}
                device = choose(wanted, node.devices, taken)
                if device is not None and (device != CPU or not taken):
                    self._house(actor, name, device)
                    settled.append(actor)
                    break
        return settled

    def _house(self, actor: ActorLife, node: str, device: str) -> None:
        options = json.loads(actor.plan.options)
        if "device" in options:
            options["device"] = device
        actor.device = device
        actor.plan = replace(actor.plan, node=node, options=json.dumps(options).encode())

    def _still_homeless(self) -> list[Instruction]:
        """Whoever finds nothing although everybody is there: nobody else will come."""
        if not all(node.up for node in self._nodes.values()):
            return []
        there = "; ".join(
            f"{name} has {_listed(node.devices)}" for name, node in self._nodes.items() if node.devices
        )
        given_up: list[Instruction] = []
        for actor in self._actors.values():
            if actor.plan.device is not None and not actor.plan.node and not (actor.proven or actor.final):
                reason = f"no node has {actor.plan.device} free for it: {there}"
                actor.fall(reason)
                actor.final = True
                given_up.append(GiveUp(actor.plan.name, 1, reason, ""))
        return given_up

    def node_exited(
        self, node: str, incarnation: int, reason: str, now: float, traceback: str = ""
    ) -> list[Instruction]:
        """The process of that life of a node has ended."""
        state = self._nodes.get(node)
        if state is None or state.incarnation != incarnation or not state.alive:
            return []
        self.leases.end(node)
        if state.suspicion:
            reason, state.suspicion = f"{state.suspicion}; {reason}", ""
        state.end(reason, traceback, now, self.limits)
        instructions: list[Instruction] = [Publish()]
        for actor in self._end_actors_of(node, state.reason):
            actor.final = state.final
            if state.final:
                trace = traceback or actor.traceback
                instructions.append(GiveUp(actor.plan.name, state.early_deaths, reason, trace))
        return instructions

    def renewed(
        self, node: str, incarnation: int, now: float, number: int = 0, taken: int = 0
    ) -> float | None:
        """That life of a node asks for its lease. Returns for how many seconds it is granted; None if it is over.

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

    def _suspect(self, node: str, incarnation: int) -> list[Instruction]:
        """A node's lease is over. What cannot be killed has ended itself by now."""
        state = self._nodes[node]
        assert state.alive and state.incarnation == incarnation, "only the living hold leases"
        reason = "it was not heard of in time"
        if state.plan.process:
            state.suspicion = reason
            return [Fence(node, incarnation, reason)]
        state.fall(reason)
        self._end_actors_of(node, reason)
        return [Publish(), *(self._start(actor) for actor in self._settle())]

    def _launch(self, node: NodeLife, now: float) -> Launch:
        launch = Launch(node.plan.name, node.begin())
        self._grant(node, now)
        return launch

    def _end_actors_of(self, node: str, reason: str) -> list[ActorLife]:
        """Takes a node's actors down with it; those that were given up before are left alone."""
        fallen = [actor for actor in self._actors_of(node) if not actor.final]
        for actor in fallen:
            actor.give_way()
            actor.fall(reason)
            if actor.plan.device is not None:  # any other node that has one will do
                actor.plan, actor.device = replace(actor.plan, node=""), None
        return fallen

    def _actors_of(self, node: str) -> list[ActorLife]:
        return [actor for actor in self._actors.values() if actor.plan.node == node]

    def plan_of(self, name: str) -> ActorPlan | None:
        """What an actor is, if it is up and may be swapped."""
        actor = self._actors.get(name)
        return actor.plan if actor is not None and actor.up and actor.former is None else None

    def swap(self, plan: ActorPlan) -> list[Instruction]:
        """Ends the life of an actor that is up, and begins another by this plan; by the former if that fails."""
        actor = self._actors[plan.name]
        assert self.plan_of(plan.name) is not None, f"{plan.name} is not up"
        actor.former, actor.plan = actor.plan, plan
        actor.fall(SWAPPED)
        return [Publish(), self._start(actor)]

    def take_back(self, name: str, error: str) -> list[Instruction]:
        """The former takes over again from a successor that has not started; nothing, if there is none any more."""
        actor = self._actors.get(name)
        if actor is None or actor.former is None:
            return []
        actor.give_way()
        actor.fall(error)
        return [Publish(), self._start(actor)]

    def actor_started(
        self,
        name: str,
        incarnation: int,
        features: tuple[str, ...],
        now: float,
        facts: Facts | None = None,
    ) -> list[Instruction]:
        """Take note that an actor is ready; `features` and `facts` are as in `ActorStarted`."""
        actor = self._actors.get(name)
        if actor is None or actor.incarnation != incarnation or not actor.alive:
            return []
        actor.features, actor.facts = features, dict(facts or {})
        actor.ready(now)
        actor.proven, actor.former = True, None
        node = self._nodes[actor.plan.node]
        if node.plan.process and not node.suspicion:  # it lives, and has less to do from now on
            self._grant(node, now)
        node.proven = node.proven or all(one.proven for one in self._actors_of(node.plan.name))
        return [Publish()]

    def actor_changed(self, name: str, incarnation: int, facts: Facts) -> list[Instruction]:
        """Take note that an actor that is up has other facts."""
        actor = self._actors.get(name)
        if actor is None or actor.incarnation != incarnation or not actor.up or actor.facts == facts:
            return []
        actor.facts = dict(facts)
        return [Publish()]

    def planned(self, name: str) -> ActorPlan | None:
        """Return what the next life of an actor would be, whether it is up or not; None if there is no such actor."""
        actor = self._actors.get(name)
        return None if actor is None else actor.plan

    def amend(self, name: str, change: Callable[[ActorPlan], ActorPlan]) -> ActorPlan:
        """Change what the next life of an actor will be; its present one goes on. Return the new plan.

        While it is not known whether a successor can start, its former's plan is changed likewise.
        """
        actor = self._actors[name]
        actor.plan = change(actor.plan)
        if actor.former is not None:
            actor.former = change(actor.former)
        return actor.plan

    def actor_failed(
        self, name: str, incarnation: int, error: str, traceback: str, now: float, *, permanent: bool = False
    ) -> list[Instruction]:
        """Decide what follows an actor's death; `permanent` is as in `ActorFailed`."""
        actor = self._actors.get(name)
        if actor is None or actor.incarnation != incarnation or not actor.alive:
            return []
        if actor.former is not None:  # no death of the actor that was there
            return self.take_back(name, error)
        actor.end(error, traceback, now, self.limits, permanent=permanent)
        give_up: list[Instruction] = (
            [GiveUp(name, actor.early_deaths, error, traceback)] if actor.final else []
        )
        return [Publish(), *give_up]

    def charged(self, name: str, deaths: int) -> None:
        """Take so many early deaths off an actor, or off each of a group, and off its node (`DeathsCharged`)."""
        for actor in self._actors.values():
            if actor.plan.name != name and not actor.plan.name.startswith(f"{name}/"):
                continue
            actor.forgive(deaths)
            if (node := self._nodes.get(actor.plan.node)) is not None:
                node.forgive(deaths)

    def tick(self, now: float) -> list[Instruction]:
        """Carries out the restarts that are due."""
        instructions: list[Instruction] = []
        for node in self._nodes.values():
            if node.retry_at is not None and node.retry_at <= now:
                instructions.append(self._launch(node, now))
        for name, incarnation in self.leases.lapsed(now):
            instructions += self._suspect(name, incarnation)
        for actor in self._actors.values():
            if actor.retry_at is not None and actor.retry_at <= now:
                instructions.append(self._start(actor))
        return instructions

    def wake_at(self) -> float | None:
        """When `tick` is next worth calling, or None."""
        times = [life.retry_at for life in (*self._nodes.values(), *self._actors.values())]
        return min((time for time in (*times, self.leases.look_at) if time is not None), default=None)

    def all_up(self) -> bool:
        """Whether every actor takes messages."""
        return all(actor.up for actor in self._actors.values())

    def directory(self) -> Directory:
        """Everybody as of now, under a new version."""
        self._version += 1
        return Directory(
            version=self._version,
            nodes=tuple(
                NodeEntry(name=name, incarnation=node.incarnation, endpoint=node.endpoint, pid=node.pid)
                for name, node in self._nodes.items()
                if node.up
            ),
            actors=tuple(_entry(actor) for actor in self._actors.values()),
        )

    def modules(self) -> list[str]:
        """Where this package's own actors are defined. A user's may change on disk before they are needed."""
        modules = {actor.plan.cls.partition(":")[0]: None for actor in self._actors.values()}
        return [module for module in modules if module.startswith("pageant.")]

    def nodes_up(self) -> list[str]:
        """Names of the nodes that are up."""
        return [name for name, node in self._nodes.items() if node.up]

    def _start_actors_of(self, node: str) -> list[Instruction]:
        return [self._start(actor) for actor in self._actors_of(node) if not actor.alive and not actor.final]

    def _start(self, actor: ActorLife) -> Start:
        plan = actor.plan
        order = StartActor(
            name=plan.name,
            incarnation=actor.begin(),
            cls=plan.cls,
            options=plan.options,
            folder=plan.folder,
        )
        return Start(plan.node, order)


def _listed(devices: Sequence[str]) -> str:
    return ", ".join(devices) or "none that it knows of"


def _entry(actor: ActorLife) -> ActorEntry:
    return ActorEntry(
        name=actor.plan.name,
        node=actor.plan.node,
        incarnation=actor.incarnation,
        up=actor.up,
        features=actor.features,
        facts=actor.facts,
        reason=actor.reason,
        final=actor.final,
        restarts=max(0, actor.restarts),
    )
