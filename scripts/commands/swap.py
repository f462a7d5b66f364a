"""`pageant swap`: asks the supervisor of a topology that runs here."""

from __future__ import annotations

import asyncio
import os
import sys

from pageant.actors.runtime.address import SUPERVISOR
from pageant.actors.runtime.loop import new_event_loop
from pageant.actors.runtime.visiting import choose, visit
from pageant.protocol.errors import PageantError
from pageant.protocol.supervision import SwapActor, Swapped

SECONDS = 300.0


def swap(actor: str, cls: str, options: str, topology: str | None, keys: str | None) -> bool:
    """Carries it out and says how it went. Returns whether the actor is now what was asked for."""
    request = SwapActor(name=actor, cls=cls, options=options, folder=os.getcwd())
    try:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            swapped = runner.run(_ask(choose(topology).endpoint, request, keys))
    except PageantError as error:
        print(f"pageant: {error}", file=sys.stderr)
        return False
    if swapped.error:
        print(f"pageant: {actor} goes on as it was: {swapped.error}", file=sys.stderr)
        return False
    print(f"{actor}#{swapped.incarnation} is up")
    return True


async def _ask(endpoint: str, request: SwapActor, keys: str | None) -> Swapped:
    async with visit(endpoint, keys) as found:
        swapped: Swapped = await found.node.ask(SUPERVISOR, request, SECONDS)
        return swapped
