"""A visit to a running topology: a node without actors, unknown to the others, which can ask every actor.

`pageant swap` and `pageant record` work this way. A visitor is named by its host, its process and a number, so
that several may come at once.
"""

from __future__ import annotations

import itertools
import os
import platform
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from pageant.actors.runtime.address import SUPERVISOR
from pageant.actors.runtime.node import Node
from pageant.actors.runtime.platform import Link, Machine
from pageant.actors.runtime.restarts import VISITOR
from pageant.actors.runtime.roster import Running, running
from pageant.actors.runtime.transport.addresses import endpoint_towards
from pageant.actors.runtime.transport.errors import LinkRefused
from pageant.protocol.errors import TopologyError
from pageant.protocol.supervision import Directory, GetDirectory, NodeEntry

ASK_SECONDS = 10.0
# Numbers of this process's present visits.
_here: set[int] = set()


def choose(name: str | None, found: Sequence[Running] | None = None) -> Running:
    """Return the topology of this host that is meant, and that can be visited; or one elsewhere, by its address.

    Raises:
        TopologyError: there is none, there are several, or it is all in one process.
    """
    if name is not None and "://" in name:
        nobody = Directory(version=0, nodes=(), actors=())
        return Running(pid=0, name=name, placement="", started_at=0.0, endpoint=name, directory=nobody)
    some = (
        [one for one in running() if name is None or name in (one.name, str(one.pid))]
        if found is None
        else found
    )
    if not some:
        raise TopologyError("", "no such topology runs here; `pageant ps` lists those that do")
    if len(some) > 1:
        raise TopologyError(
            "", f"{len(some)} topologies run here; name one with --topology NAME or its process id"
        )
    if not some[0].endpoint:
        raise TopologyError("", "this topology is all in one process: only that process can reach its actors")
    return some[0]


class Visit:
    """A visitor's links to the nodes of a topology. `node` can ask the supervisor, and others once `look` has
    found them.
    """

    def __init__(self, node: Node, link: Link) -> None:
        self.node, self._link = node, link
        self._met = {(node.remote.root, 1)}

    async def look(self, actor: str | None = None) -> Directory:
        """Return the present directory. Every node in it that answers can be asked from now on.

        Args:
            actor: the one that is to be asked; None is any. A node of others may have gone, and not answer for long.
        """
        directory: Directory = await self.node.ask(SUPERVISOR, GetDirectory(), ASK_SECONDS)
        homes = {entry.node for entry in directory.actors if actor in (None, entry.name)}
        for entry in directory.nodes:
            if (entry.name, entry.incarnation) not in self._met and (actor is None or entry.name in homes):
                await self._meet(entry)
        self.node.update(directory)
        return directory

    async def _meet(self, entry: NodeEntry) -> None:
        try:
            await self._link.connect(entry.name, entry.incarnation, entry.endpoint)
        except LinkRefused:  # it has just ended, or is busy: it is tried again with the next look
            return
        self._met.add((entry.name, entry.incarnation))


@asynccontextmanager
async def visit(endpoint: str, keys: str | None = None) -> AsyncIterator[Visit]:
    """Join the topology whose root listens at `endpoint`, for as long as the context lasts.

    Args:
        keys: the file with the topology's key, if it has one.

    Raises:
        LinkRefused: it does not answer, or speaks another protocol.
    """
    number = next(free for free in itertools.count() if free not in _here)
    _here.add(number)
    try:
        async with _visit(f"{VISITOR}{platform.node()}:{os.getpid()}:{number}", endpoint, keys) as found:
            yield found
    finally:
        _here.discard(number)


@asynccontextmanager
async def _visit(name: str, endpoint: str, keys: str | None) -> AsyncIterator[Visit]:
    machine = Machine(keys)
    own = endpoint_towards(endpoint)
    link = machine.open_link(name, 0, own, Node(name, incarnation=0, platform=machine).remote)
    try:
        incarnation = (await link.connect("root", 1, endpoint)).issued
    finally:
        link.close()
    node = Node(name, incarnation=incarnation, platform=machine)
    link = machine.open_link(name, incarnation, own, node.remote)
    try:
        node.remote.connect(link, (await link.connect("root", 1, endpoint)).node)
        yield Visit(node, link)
    finally:
        await node.stop()
        link.close()
