"""A supervision core with a few nodes and actors, and readers of its instructions."""

from __future__ import annotations

from pageant.actors.runtime.instructions import GiveUp, Launch, Start
from pageant.actors.runtime.lease import LeaseTerms
from pageant.actors.runtime.lives import RestartLimits
from pageant.actors.runtime.plans import ActorPlan, NodePlan
from pageant.actors.runtime.restarts import Supervision

LIMITS = RestartLimits(
    failed_starts_max=4, early_deaths_max=4, early_seconds=5.0, delay_first=0.5, delay_max=1.5
)
NODES = (NodePlan("root"), NodePlan("apart", process=True), NodePlan("guest", joins=True))
ACTORS = (
    ActorPlan("here", "root", "m:C", b"{}"),
    ActorPlan("there/0", "apart", "m:C", b"{}"),
    ActorPlan("there/1", "apart", "m:C", b"{}"),
    ActorPlan("visitor", "guest", "m:C", b"{}"),
)
PATIENT = LeaseTerms(heartbeat=1e6, suspicion=1e9)


def starts(instructions) -> list[tuple[str, int]]:
    """Return the actors that are to start, with their incarnations."""
    return [(item.order.name, item.order.incarnation) for item in instructions if isinstance(item, Start)]


def launches(instructions) -> list[tuple[str, int]]:
    """Return the nodes that are to be launched, with their incarnations."""
    return [(item.node, item.incarnation) for item in instructions if isinstance(item, Launch)]


def given_up(instructions) -> list[str]:
    """Return the names of actors and nodes that are given up."""
    return [item.who for item in instructions if isinstance(item, GiveUp)]


def entry(core: Supervision, name: str):
    """Return an actor's entry of the directory."""
    return {actor.name: actor for actor in core.directory().actors}[name]
