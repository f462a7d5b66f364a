"""Replicas of a model as their users add and remove them: `Engine.replicas` and `LLM.replicas`."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from typing import Any

from pageant.actors.client.cast import LIFECYCLE
from pageant.actors.client.session import Session
from pageant.protocol.lifecycle import DRAIN_SECONDS
from pageant.protocol.replicas import (
    AddReplica,
    DrainReplica,
    GetReplicas,
    RemoveReplica,
    ReplicaEntry,
    Replicas,
)

PATIENCE = 30.0
"""Seconds for which a drained replica may go on with what it has."""


class _Asked:
    """Questions to the lifecycle actor about the replicas of a session's model."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def ls(self) -> Future[Replicas]:
        return self._ask(GetReplicas(model=self._session.replica))

    def add(self, name: str) -> Future[Replicas]:
        return self._ask(AddReplica(model=self._session.replica, name=str(name)))

    def drain(self, name: str, patience: float, force: bool) -> Future[Replicas]:
        model = self._session.replica
        return self._ask(DrainReplica(model=model, name=str(name), patience=float(patience), force=force))

    def remove(self, name: str, force: bool) -> Future[Replicas]:
        return self._ask(RemoveReplica(model=self._session.replica, name=str(name), force=force))

    def _ask(self, request: Any) -> Future[Replicas]:
        return self._session.asking(LIFECYCLE, request, DRAIN_SECONDS)


class AsyncReplicas:
    """The replicas of an engine's model."""

    def __init__(self, session: Session) -> None:
        self._asked = _Asked(session)

    async def ls(self) -> list[ReplicaEntry]:
        """Return the replicas, by number."""
        return [*(await asyncio.wrap_future(self._asked.ls())).replicas]

    async def add(self, name: str = "") -> str:
        """Start another replica. Returns its name when it takes requests.

        Args:
            name: such as `replica-1`, which may be there already; without one it has the lowest number that is free.

        Raises:
            RemoteError: the topology has no room for another, or the replica cannot start.
        """
        return (await asyncio.wrap_future(self._asked.add(name))).name

    async def drain(self, name: str, patience: float = PATIENCE, *, force: bool = False) -> None:
        """Give a replica no new requests, and remove it when it has none. No request is lost.

        Args:
            name: such as `replica-1`.
            patience: seconds after which the requests that it still has go on at other replicas.
            force: also the last replica; requests then wait for another.

        Raises:
            RemoteError: there is no such replica, it is the last one, or it is being drained already.
        """
        await asyncio.wrap_future(self._asked.drain(name, patience, force))

    async def remove(self, name: str, *, force: bool = False) -> None:
        """Remove a replica at once. Its requests go on at other replicas; see `drain`."""
        await asyncio.wrap_future(self._asked.remove(name, force))


class SyncReplicas:
    """The same methods for `LLM`."""

    def __init__(self, session: Session) -> None:
        self._asked = _Asked(session)

    def ls(self) -> list[ReplicaEntry]:
        """See `AsyncReplicas.ls`."""
        return [*self._asked.ls().result().replicas]

    def add(self, name: str = "") -> str:
        """See `AsyncReplicas.add`."""
        return self._asked.add(name).result().name

    def drain(self, name: str, patience: float = PATIENCE, *, force: bool = False) -> None:
        """See `AsyncReplicas.drain`."""
        self._asked.drain(name, patience, force).result()

    def remove(self, name: str, *, force: bool = False) -> None:
        """See `AsyncReplicas.remove`."""
        self._asked.remove(name, force).result()
