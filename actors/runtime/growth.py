"""Replicas that are added to a topology, and taken out of it, while it runs."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

from pageant.actors.runtime.address import index_of, model_of, replica_of, replica_prefix
from pageant.actors.runtime.launcher import LauncherByNode, NodeNeeds
from pageant.actors.runtime.plans import ActorPlan, NodePlan
from pageant.actors.runtime.resolving import Resolved
from pageant.actors.runtime.topology import REPLICAS_MAX
from pageant.protocol.checks import expected
from pageant.protocol.errors import BadRequest


class Growth:
    """Plans of further replicas, from the topology as it was written.

    Args:
        topology: the topology as it was started.
        launchers: of its nodes; None where it has no other processes.
    """

    def __init__(self, topology: Resolved, launchers: LauncherByNode | None) -> None:
        self._topology, self._launchers = topology, launchers

    @staticmethod
    def present(names: Iterable[str]) -> dict[str, tuple[int, ...]]:
        """Return the numbers of each model's replicas that have actors of these names."""
        found: dict[str, set[int]] = {}
        for prefix in map(replica_of, names):
            if (number := index_of(prefix)) is not None:
                found.setdefault(model_of(prefix), set()).add(number)
        return {model: tuple(sorted(numbers)) for model, numbers in found.items()}

    def plan(
        self, model: str, names: Sequence[str], number: int | None = None
    ) -> tuple[str, list[NodePlan], list[ActorPlan]]:
        """Return the prefix of another replica of a model, with the nodes and actors that it takes.

        Args:
            model: the prefix of the model.
            names: of all actors that there are.
            number: the replica's; None is the lowest that no replica has. One that is there takes nothing more.

        Raises:
            BadRequest: the model has no replicas, or as many as there can be.
            TopologyError: the topology has no room for another; its message says what is missing.
        """
        models = [prefix for prefix, numbers in self._topology.replicas.items() if numbers]
        if model not in models:
            known = [prefix.rstrip("/") for prefix in models]
            raise BadRequest(f"model is {model.rstrip('/')!r}; {expected(model.rstrip('/'), known)}", "model")
        present = dict.fromkeys(models, ()) | self.present(names)
        if number is not None and number in present[model]:
            return replica_prefix(model, number), [], []
        if len(present[model]) >= REPLICAS_MAX:
            raise BadRequest(f"there are {REPLICAS_MAX} replicas; expected no more", "model")
        if number is None:
            number = next(one for one in itertools.count() if one not in present[model])
        present[model] = tuple(sorted((*present[model], number)))
        assert self._topology.grow is not None, "a model has replicas"
        grown, prefix = self._topology.grow(present), replica_prefix(model, number)
        actors = [actor for actor in grown.actors if actor.name.startswith(prefix)]
        homes = {actor.node for actor in actors}
        nodes = [node for node in grown.nodes if node.name in homes]
        for node in nodes:
            if node.launcher is not None and self._launchers is not None:
                self._launchers.add(node.name, node.launcher, needs_of(node, actors))
        if self._launchers is None and any(node.process for node in nodes):
            raise BadRequest("this topology is all in one process, and another replica needs its own")
        return prefix, nodes, actors


def needs_of(node: NodePlan, actors: Iterable[ActorPlan]) -> NodeNeeds:
    """Return what a node needs of its launcher.

    Args:
        actors: those of the topology, or of its replica.
    """
    members = [actor for actor in actors if actor.bound]
    groups = {actor.bound for actor in members if actor.node == node.name}
    together = dict.fromkeys(actor.node for actor in members if actor.bound in groups)
    return NodeNeeds(device=node.device, together=tuple(together) if len(together) > 1 else ())
