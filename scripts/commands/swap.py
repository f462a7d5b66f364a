"""`pageant swap`: asks the supervisor of a topology that runs here."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence

from pageant.actors.runtime.loop import new_event_loop
from pageant.actors.runtime.node import SUPERVISOR, Node
from pageant.actors.runtime.platform import Machine
from pageant.actors.runtime.restarts import CONSOLE
from pageant.actors.runtime.roster import Running, running
from pageant.actors.runtime.transport.addresses import endpoint_towards
from pageant.protocol.errors import PageantError
from pageant.protocol.supervision import SwapActor, Swapped

SECONDS = 300.0


def swap(actor: str, cls: str, options: str, topology: str | None, keys: str | None) -> bool:
    """Carries it out and says how it went. Returns whether the actor is now what was asked for."""
    chosen = _choose(running(), topology)
    if isinstance(chosen, str):
        print(chosen, file=sys.stderr)
        return False
    request = SwapActor(name=actor, cls=cls, options=options)
    try:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            swapped = runner.run(_ask(chosen.endpoint, request, keys))
    except PageantError as error:
        print(error, file=sys.stderr)
        return False
    if swapped.error:
        print(f"{actor} goes on as it was: {swapped.error}", file=sys.stderr)
        return False
    print(f"{actor}#{swapped.incarnation} is up")
    return True


def _choose(found: Sequence[Running], name: str | None) -> Running | str:
    """The topology that is meant, or what is wrong."""
    some = [one for one in found if name is None or name in (one.name, str(one.pid))]
    if not some:
        return "no such topology runs here; `pageant ps` lists those that do"
    if len(some) > 1:
        return f"{len(some)} topologies run here; name one with --topology NAME or its process id"
    if not some[0].endpoint:
        return "this topology is all in one process: only that process can swap its actors (engine.swap)"
    return some[0]


async def _ask(endpoint: str, request: SwapActor, keys: str | None) -> Swapped:
    """Joins for a moment, as a console: a node without actors, which nobody else hears of."""
    machine = Machine(keys)
    visitor = Node(CONSOLE, incarnation=0, platform=machine)
    own = endpoint_towards(endpoint)
    link = machine.open_link(CONSOLE, 0, own, visitor.remote)
    try:
        incarnation = (await link.connect("root", 1, endpoint)).issued
    finally:
        link.close()
    node = Node(CONSOLE, incarnation=incarnation, platform=machine)
    link = machine.open_link(CONSOLE, incarnation, own, node.remote)
    try:
        root = (await link.connect("root", 1, endpoint)).node
        node.remote.connect(link, root)
        swapped: Swapped = await node.ask(SUPERVISOR, request, SECONDS)
        return swapped
    finally:
        await node.stop()
        link.close()
