"""`pageant replicas`: asks the lifecycle actor of a topology that runs here."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from pageant.actors.runtime.loop import new_event_loop
from pageant.actors.runtime.visiting import choose, visit
from pageant.protocol.errors import PageantError, RemoteError
from pageant.protocol.lifecycle import DRAIN_SECONDS
from pageant.protocol.replicas import Replicas
from pageant.scripts.report import table

LIFECYCLE = "lifecycle"


def prefix_of(model: str | None) -> str:
    """Return the prefix of a model's actors by its name in a topology of several; None is the only model."""
    return "" if model is None else f"{model}/"


def carry_out(request: Any, topology: str | None, keys: str | None) -> bool:
    """Ask, and print the replicas that there are then. Return whether it was done."""
    try:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            found = runner.run(_ask(choose(topology).endpoint, request, keys))
    except RemoteError as error:
        print(f"pageant: {error.detail}", file=sys.stderr)
        return False
    except PageantError as error:
        print(f"pageant: {error}", file=sys.stderr)
        return False
    rows = [(one.name, one.state, one.actors, one.num_open) for one in found.replicas]
    print("\n".join(table(("replica", "state", "actors", "open requests"), rows)))
    return True


async def _ask(endpoint: str, request: Any, keys: str | None) -> Replicas:
    async with visit(endpoint, keys) as found:
        await found.look(LIFECYCLE)
        replicas: Replicas = await found.node.ask(LIFECYCLE, request, DRAIN_SECONDS)
        return replicas
