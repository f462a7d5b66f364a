"""Routes for operators that kill an actor's process, to see that no stream stops. On with `admin_routes` or `demo`."""

from __future__ import annotations

import os
import signal
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from litestar import get, post

from pageant.actors.http.openapi import describe
from pageant.actors.http.operating import Http, Operators
from pageant.protocol.checks import expected
from pageant.protocol.errors import BadRequest
from pageant.protocol.statistics import Observation
from pageant.protocol.supervision import Directory, NodeEntry

LOCAL = "ipc://"
"""How the endpoints of nodes of this host begin, unless the topology says that they use TCP."""
SUPERVISOR = "supervisor"
_NAME = {"name": "name", "required": True, "schema": {"type": "string"}}


class Killable(msgspec.Struct, kw_only=True):
    """The actors whose processes may be killed, each with those that die with it."""

    actors: dict[str, list[str]]


class Killed(msgspec.Struct, kw_only=True):
    """The process that was killed, and the actors that died with it."""

    node: str
    pid: int
    actors: list[str]


def routes(
    operators: Operators,
    directory: Callable[[], Awaitable[Directory]],
    observe: Callable[[], Awaitable[Observation]],
) -> list[Any]:
    """Return the routes of this family."""

    @get("/actors/killable", opt=describe(answer=Killable))
    async def killable() -> Killable:
        """List the actors that may be killed, with those that share their processes."""
        operators.check()
        found = _members(await directory(), await observe())
        return Killable(actors={name: members for _, members in found for name in members})

    @post("/actors/kill", status_code=200, opt=describe(answer=Killed, query=(_NAME,)))
    async def kill(request: Http) -> Killed:
        """Kill the process of an actor, with all actors in it. The supervisor starts them again."""
        operators.check()
        name = request.query_params.get("name", "")
        found = _members(await directory(), await observe())
        for node, members in found:
            if name in members:
                try:
                    os.kill(node.pid, signal.SIGKILL)
                except ProcessLookupError:
                    raise BadRequest(
                        f"{name} cannot be killed: its process {node.pid} has just ended"
                    ) from None
                return Killed(node=node.name, pid=node.pid, actors=members)
        known = [one for _, members in found for one in members]
        raise BadRequest(
            f"name is {name!r:.100}; {expected(name, known)} (an actor in a process of this host that is neither the "
            "server's own nor the supervisor's)",
            "name",
        )

    return [killable, kill]


def _members(directory: Directory, seen: Observation) -> list[tuple[NodeEntry, list[str]]]:
    """Return the nodes that may be killed, with their actors: those that start or are down, too, so that whoever looks
    early is told of them."""
    supervising = {name for name, node in seen.nodes.items() if SUPERVISOR in node.actors}
    found = []
    for node in directory.nodes:
        is_ours = node.pid in (0, os.getpid()) or node.name in supervising
        members = [actor.name for actor in directory.actors if actor.node == node.name]
        if supervising and not is_ours and node.endpoint.startswith(LOCAL) and members:
            found.append((node, members))
    return found
