"""The root supervisor's decisions about actors and nodes that come and go while the topology runs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pageant.actors.runtime.device_placement import place_by_device
from pageant.actors.runtime.instructions import Dismiss, Instruction, Publish
from pageant.actors.runtime.membership import Membership
from pageant.actors.runtime.plans import ActorPlan, NodePlan
from pageant.actors.runtime.restarts import Supervision


class ElasticSupervision(Supervision):
    """Supervision whose nodes and actors may be added and removed, those of one replica at a time."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self._membership = Membership(self._nodes, self._actors)

    def add(self, nodes: Iterable[NodePlan], actors: Iterable[ActorPlan], now: float) -> list[Instruction]:
        """Begin the lives of nodes and actors that are not there yet, at `now` seconds."""
        new_nodes, new_actors = self._membership.add(nodes, actors)
        launched = [self._launch(node, now) for node in new_nodes if node.plan.process]
        placed = place_by_device(self._actors.values(), self._nodes.values())
        begun = self._start([*new_actors, *placed])
        return [*launched, Publish(), *begun, *self._give_up_unplaced()]

    def remove(self, prefix: str) -> list[Instruction]:
        """End the actors of a prefix for good, and the processes that were theirs alone."""
        ends = self._membership.remove(prefix)
        for end in ends:
            if isinstance(end, Dismiss):
                self.leases.end(end.node)
        return [*ends, Publish()]

    def drain(self, prefix: str, level: int) -> list[Instruction]:
        """Tell the watchers of the actors of a prefix how far they are being drained."""
        return [Publish()] if self._membership.drain(prefix, level) else []

    def has_node(self, name: str) -> bool:
        """Tell whether the topology has a node of that name."""
        return name in self._nodes

    def names(self) -> list[str]:
        """Return the names of all actors."""
        return [*self._actors]
