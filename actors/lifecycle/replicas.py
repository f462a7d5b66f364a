"""Replicas of a model that are added, drained and removed while it is served.

What a drain has come to stands in the supervisor's directory, as a fact of the replica's actors. A lifecycle actor
that begins again goes on with the drains that it finds there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Literal

from pageant.actors.lifecycle.control import ANSWER_SECONDS, FRONTENDS, ReplicaControl
from pageant.actors.runtime import Actor, receives
from pageant.actors.runtime.address import SUPERVISOR, index_of, model_of, replica_of, role_of
from pageant.protocol.checks import expected
from pageant.protocol.errors import BadRequest, PageantError, PeerGone, RemoteError, StartupError
from pageant.protocol.fronting import ServedModel
from pageant.protocol.lifecycle import DRAIN_SECONDS
from pageant.protocol.replicas import (
    CLOSED,
    DRAINING,
    MOVING,
    AddReplica,
    DrainReplica,
    GetPlaceUse,
    GetReplicas,
    RemoveReplica,
    ReplicaEntry,
    Replicas,
)
from pageant.protocol.supervision import (
    ActorEntry,
    AddReplicaActors,
    Directory,
    GetDirectory,
    MarkReplica,
    RemoveReplicaActors,
    ReplicaChanged,
)

LOOK_SECONDS = 0.05
"""Time between two looks at a replica that starts or is drained."""
USE_SECONDS = 2.0
"""The longest wait for a frontend to say what it has at a replica."""


class ElasticLifecycle(Actor):
    """Base of the lifecycle actor: adds, drains and removes replicas."""

    _replicated: dict[str, ReplicaControl]
    """The models that have replicas, by their prefixes."""

    @receives(concurrent=True)
    async def replicas(self, request: GetReplicas) -> Replicas:
        """Return the replicas of a model."""
        return await self._replicas(self._model_with_replicas(request.model))

    @receives(concurrent=True)
    async def add_replica(self, request: AddReplica) -> Replicas:
        """Start another replica, and answer when it takes requests."""
        model, number = self._model_with_replicas(request.model), None
        if request.name and (number := index_of(f"{request.name}/")) is None:
            raise BadRequest(
                f"name is {request.name!r:.100}; expected a replica's, such as replica-1", "name"
            )
        several = self._replicated[model]
        async with several.changing, several.joining:
            options = await several.changed_options()
            order = AddReplicaActors(model=model, number=number, options=options)
            prefix = (await self._ask_supervisor(order)).prefix
        while request.wait:
            own = _by_replica(await self._directory()).get(prefix)
            if not own:
                raise PeerGone(f"{_name(prefix)} was removed while it started")
            if lost := [entry for entry in own if entry.final]:
                await self._ask_supervisor(RemoveReplicaActors(prefix=prefix))
                raise StartupError(f"{_name(prefix)} cannot start: {lost[0].name}: {lost[0].reason}")
            if all(entry.up for entry in own):
                return await self._replicas(model, _name(prefix))
            await asyncio.sleep(LOOK_SECONDS)
        return await self._replicas(model, _name(prefix))

    @receives(concurrent=True)
    async def drain_replica(self, request: DrainReplica) -> Replicas:
        """Let a replica finish, move what it has after a while, and remove it."""
        if not 0 <= request.patience < 1e6:
            raise BadRequest(f"patience is {request.patience}; expected seconds of at least 0", "patience")
        model = self._model_with_replicas(request.model)
        prefix = await self._leaving(model, request.name, force=request.force)
        await self._ask_supervisor(MarkReplica(prefix=prefix, draining=CLOSED))
        await self._finish_drain(prefix, request.patience)
        return await self._replicas(model, request.name)

    @receives(concurrent=True)
    async def remove_replica(self, request: RemoveReplica) -> Replicas:
        """Remove a replica at once. Its requests go on elsewhere."""
        model = self._model_with_replicas(request.model)
        prefix = await self._leaving(model, request.name, force=request.force, may_drain=True)
        await self._ask_supervisor(RemoveReplicaActors(prefix=prefix))
        return await self._replicas(model, request.name)

    async def _go_on_draining(self) -> None:
        """Finish the drains that a former life began."""
        for prefix, own in _by_replica(await self._directory()).items():
            if _draining(own):
                self.spawn(self._finish_drain(prefix, 0.0))

    async def _finish_drain(self, prefix: str, patience: float) -> None:
        """Remove a replica that takes no requests, once it has none; move those that it has after `patience`
        seconds.
        """
        began, has_moved = self.clock.now(), False
        while await self._num_open(prefix, await self._directory()):
            if not has_moved and self.clock.now() - began >= patience:
                has_moved = True
                await self._ask_supervisor(MarkReplica(prefix=prefix, draining=MOVING))
            await asyncio.sleep(LOOK_SECONDS)
        await self._ask_supervisor(RemoveReplicaActors(prefix=prefix))

    # What is asked for, and what there is.

    def _model_with_replicas(self, model: str) -> str:
        served: tuple[ServedModel, ...] = self.options.served
        known = [one.replica for one in served if one.is_replicated]
        if model in known:
            return model
        if model in [one.replica for one in served]:
            raise BadRequest(
                "this model has no replicas; start it with replicas: 2, or with a router, to add and remove some",
                "model",
            )
        raise BadRequest(f"model is {_name(model)!r}; {expected(_name(model), map(_name, known))}", "model")

    async def _leaving(self, model: str, name: str, *, force: bool, may_drain: bool = False) -> str:
        """Return the prefix of a replica that may leave, since another takes requests.

        Raises:
            BadRequest: there is no such replica, it is being drained, or it is the last one.
        """
        there = {
            prefix: own
            for prefix, own in _by_replica(await self._directory()).items()
            if model_of(prefix) == model
        }
        names = {_name(prefix.removeprefix(model)): prefix for prefix in there}
        if name not in names:
            raise BadRequest(f"name is {name!r:.100}; {expected(name, names)}", "name")
        prefix = names[name]
        is_draining = _draining(there[prefix])
        if is_draining and not may_drain:
            raise BadRequest(f"{name} is being drained already", "name")
        others = [own for one, own in there.items() if one != prefix and _state(own) == "up"]
        if not (others or force or is_draining):
            raise BadRequest(
                f"{name} is the last replica that takes requests; expected another, or force", "name"
            )
        return prefix

    async def _replicas(self, model: str, name: str = "") -> Replicas:
        entries, directory = [], await self._directory()
        for prefix, own in sorted(_by_replica(directory).items(), key=lambda one: index_of(one[0]) or 0):
            if model_of(prefix) == model:
                num_open = await self._num_open(prefix, directory)
                short = _name(prefix.removeprefix(model))
                entries.append(
                    ReplicaEntry(name=short, state=_state(own), actors=len(own), num_open=num_open)
                )
        return Replicas(replicas=tuple(entries), name=name)

    async def _num_open(self, prefix: str, directory: Directory) -> int:
        """Return the open sequences of all frontends at a replica. One that does not answer may have some."""
        names = [entry.name for entry in directory.actors if entry.up and role_of(entry.name) in FRONTENDS]
        return sum(await asyncio.gather(*(self._num_open_of(name, prefix) for name in names)))

    async def _num_open_of(self, frontend: str, prefix: str) -> int:
        try:
            return (await self.ask(frontend, GetPlaceUse(prefix=prefix), timeout=USE_SECONDS)).num_open
        except RemoteError:
            return 0  # somebody's own, that does not know the question
        except PeerGone:
            return 0
        except PageantError:
            return 1

    async def _directory(self) -> Directory:
        directory: Directory = await self.ask(SUPERVISOR, GetDirectory(), timeout=ANSWER_SECONDS)
        return directory

    async def _ask_supervisor(
        self, request: AddReplicaActors | MarkReplica | RemoveReplicaActors
    ) -> ReplicaChanged:
        try:
            return await self.ask(SUPERVISOR, request, timeout=DRAIN_SECONDS)
        except RemoteError as error:
            raise BadRequest(error.detail) from None


def _by_replica(directory: Directory) -> dict[str, list[ActorEntry]]:
    """Return the actors of each replica, by its prefix."""
    found: dict[str, list[ActorEntry]] = {}
    for entry in directory.actors:
        prefix = replica_of(entry.name)
        if index_of(prefix) is not None:
            found.setdefault(prefix, []).append(entry)
    return found


def _name(prefix: str) -> str:
    return prefix.rstrip("/")


def _draining(own: Iterable[ActorEntry]) -> bool:
    return any(entry.facts.get(DRAINING) for entry in own)


def _state(own: list[ActorEntry]) -> Literal["up", "starting", "down", "draining"]:
    if _draining(own):
        return "draining"
    if all(entry.up for entry in own):
        return "up"
    return "down" if any(entry.reason for entry in own) else "starting"
