"""The supervisor's part in adding, draining and removing replicas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pageant.actors.runtime.actor import Actor
from pageant.actors.runtime.elastic_supervision import ElasticSupervision
from pageant.actors.runtime.growth import Growth
from pageant.actors.runtime.handlers import receives
from pageant.actors.runtime.instructions import Instruction
from pageant.actors.runtime.plans import ActorPlan
from pageant.actors.runtime.swapping import successor
from pageant.protocol.errors import BadRequest
from pageant.protocol.supervision import AddReplicaActors, MarkReplica, RemoveReplicaActors, ReplicaChanged


class ElasticSupervisor(Actor):
    """Base of the root supervisor: carries out what the lifecycle actor has decided about replicas."""

    core: ElasticSupervision
    _growth: Growth | None

    async def _carry_out(self, instructions: Sequence[Instruction]) -> None:
        raise NotImplementedError

    @receives
    async def add_replica(self, request: AddReplicaActors) -> ReplicaChanged:
        """Begin another replica of a model. Returned as soon as its actors are being started."""
        growth = self._growth
        if growth is None:
            raise BadRequest(
                "this topology's models have no replicas to which one could be added; start it with replicas: 2, or "
                "with a router",
                "model",
            )
        prefix, nodes, actors = await self.offload(
            growth.plan, request.model, self.core.names(), request.number
        )
        if actors:
            actors = await self.offload(_with_options, prefix, actors, request.options)
            await self._carry_out(self.core.add(nodes, actors, self.clock.now()))
        return ReplicaChanged(prefix=prefix)

    @receives
    async def mark_replica(self, request: MarkReplica) -> ReplicaChanged:
        """Let everybody know how far a replica is being drained."""
        await self._carry_out(self.core.drain(request.prefix, request.draining))
        return ReplicaChanged(prefix=request.prefix)

    @receives
    async def remove_replica(self, request: RemoveReplicaActors) -> ReplicaChanged:
        """End a replica's actors for good."""
        await self._carry_out(self.core.remove(request.prefix))
        return ReplicaChanged(prefix=request.prefix)


def _with_options(prefix: str, actors: Sequence[ActorPlan], options: Mapping[str, str]) -> list[ActorPlan]:
    """Lay a replica's options, by its actors' names within it, over those of their plans."""
    given = [options.get(actor.name.removeprefix(prefix)) for actor in actors]
    return [successor(actor, "", own) if own else actor for actor, own in zip(actors, given, strict=True)]
