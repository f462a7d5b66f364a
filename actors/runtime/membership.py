"""Actors and nodes that come and go while a topology runs. A core, part of `Supervision`.

A name that comes again begins after the incarnations that it had before, so that no message of its former lives can be
taken for one of the new.
"""

from __future__ import annotations

from collections.abc import Iterable

from pageant.actors.runtime.instructions import Dismiss, Stop
from pageant.actors.runtime.lives import ActorLife, NodeLife
from pageant.actors.runtime.plans import ActorPlan, NodePlan
from pageant.protocol.supervision import REMOVED


class Membership:
    """Adds actors with their nodes, and takes them out.

    Args:
        nodes: all nodes, by name. Changed here.
        actors: all actors, by name. Changed here.
    """

    def __init__(self, nodes: dict[str, NodeLife], actors: dict[str, ActorLife]) -> None:
        self._nodes, self._actors = nodes, actors
        # The latest incarnation of nodes and actors that have left, by name.
        self._former_nodes: dict[str, int] = {}
        self._former_actors: dict[str, int] = {}

    def add(
        self, nodes: Iterable[NodePlan], actors: Iterable[ActorPlan]
    ) -> tuple[list[NodeLife], list[ActorLife]]:
        """Add what is not there yet. Return the lives that are to begin."""
        added_nodes, added_actors = [], []
        for node in nodes:
            if node.name not in self._nodes:
                before = self._former_nodes.pop(node.name, 0)
                life = self._nodes[node.name] = NodeLife(plan=node, incarnation=before, issued=before)
                added_nodes.append(life)
        for actor in actors:
            if actor.name not in self._actors:
                before = self._former_actors.pop(actor.name, 0)
                new = self._actors[actor.name] = ActorLife(plan=actor, incarnation=before)
                added_actors.append(new)
        return added_nodes, added_actors

    def remove(self, prefix: str) -> list[Stop | Dismiss]:
        """Take out the actors of a prefix, and the processes that had no others. Return how to end them."""
        gone = [actor for name, actor in self._actors.items() if name.startswith(prefix)]
        homes = {actor.plan.node for actor in gone}
        stops: list[Stop | Dismiss] = []
        for actor in gone:
            del self._actors[actor.plan.name]
            self._former_actors[actor.plan.name] = actor.incarnation
        empty = homes - {actor.plan.node for actor in self._actors.values()}
        for actor in gone:
            node = self._nodes.get(actor.plan.node)
            if actor.alive and node is not None and not (node.plan.process and node.plan.name in empty):
                stops.append(Stop(node.plan.name, actor.plan.name, actor.incarnation, REMOVED))
        for name in sorted(empty):
            node = self._nodes.get(name)
            if node is not None and node.plan.process:
                del self._nodes[name]
                self._former_nodes[name] = node.incarnation
                stops.append(Dismiss(name))
        return stops

    def drain(self, prefix: str, level: int) -> bool:
        """Note how far the actors of a prefix are drained. Return whether there are any."""
        found = [actor for name, actor in self._actors.items() if name.startswith(prefix)]
        for actor in found:
            actor.draining = level
        return bool(found)
