"""`pageant ps`: the topologies that run here, with their processes and actors."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator

import msgspec

from pageant.actors.runtime.roster import Running, running
from pageant.protocol.lifecycle import ASLEEP
from pageant.protocol.supervision import ActorEntry
from pageant.scripts.report import table


def ps(*, as_json: bool) -> None:
    """Prints every topology of this user on this host."""
    found = running()
    if as_json:
        print(json.dumps([_data(one) for one in found], indent=1))
        return
    for one in found:
        print(f"{one.name} (process {one.pid}, placement {one.placement})")
        header = ("actor", "node", "pid", "incarnation", "restarts", "state")
        print("\n".join(f"  {line}" for line in table(header, _rows(one))))
    if not found:
        print("no topology runs here", file=sys.stderr)


def _rows(topology: Running) -> Iterator[tuple[object, ...]]:
    pids = {node.name: node.pid for node in topology.directory.nodes}
    for actor in topology.directory.actors:
        pid = pids.get(actor.node, "-")
        yield actor.name, actor.node, pid, actor.incarnation, actor.restarts, _state(actor)


def _state(actor: ActorEntry) -> str:
    if actor.up:
        level = actor.facts.get(ASLEEP)
        return f"asleep (level {level})" if level else "up"
    if actor.final:
        return f"given up: {actor.reason}"
    return f"down: {actor.reason}" if actor.reason else "starting"


def _data(topology: Running) -> dict[str, object]:
    data: dict[str, object] = msgspec.to_builtins(topology)
    directory = msgspec.to_builtins(topology.directory)
    states = [_state(actor) for actor in topology.directory.actors]
    actors = [actor | {"state": state} for actor, state in zip(directory["actors"], states, strict=True)]
    del data["directory"]
    return data | {"nodes": directory["nodes"], "actors": actors}
