"""`pageant topology check | show | draw`."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import yaml

from pageant.actors.frontend.session import resolve_topology
from pageant.actors.frontend.settings import topology_of
from pageant.actors.runtime.placement import AUTO_PROCESSES
from pageant.actors.runtime.restarts import ActorPlan
from pageant.actors.runtime.topology import Resolved, Topology

# Who talks to whom in a step, for the drawing.
MESSAGES = (
    ("frontend", "tokenizer", "Tokenize"),
    ("frontend", "scheduler", "Submit, Abort"),
    ("scheduler", "blocks", "Assign / Assigned"),
    ("scheduler", "executor", "StepPlan / StepResult"),
    ("scheduler", "detokenizer", "TokenBatch / Stopped"),
    ("detokenizer", "frontend", "OutputBatch"),
)


def _load(arguments: dict[str, Any]) -> tuple[Topology, Resolved]:
    settings = dict(arguments)
    topology = topology_of(settings.pop("model", None), settings.pop("topology", None), settings)
    return topology, resolve_topology(topology)


def check(arguments: dict[str, Any]) -> None:
    """Says that a topology is sound; what is not is raised on the way."""
    _, resolved = _load(arguments)
    processes = sum(node.process for node in resolved.nodes)
    print(
        f"sound: {len(resolved.actors)} actors on {len(resolved.nodes)} nodes ({processes} processes of their own)"
    )


def show(arguments: dict[str, Any]) -> None:
    """Prints the topology with every default filled in, in the form that it is written in.

    What all actors that have an option agree on stands at the top, as a setting, so that it can still be
    overridden there; who lives where stands beside each actor, unless it was written.
    """
    topology, resolved = _load(arguments)
    options = {actor.name: json.loads(actor.options) for actor in resolved.actors}
    settings = {**_agreed(options), **topology.settings}
    data: dict[str, Any] = {"model": topology.model, "placement": resolved.placement, "wire": resolved.wire}
    data |= {"transport": resolved.transport, "replicas": topology.replicas, "seed": resolved.seed}
    data |= {name: getattr(topology, name) for name in ("heartbeat_seconds", "suspicion_seconds")}
    if resolved.listen is not None:
        data["listen"] = resolved.listen
    data |= {name: value for name, value in settings.items() if value is not None and name != "model"}
    data["nodes"] = {name: _written(node) for name, node in topology.nodes.items()} or {resolved.root: {}}
    data["actors"] = {
        name: _actor(topology, name, [actor for actor in resolved.actors if _role(actor) == name], settings)
        for name in dict.fromkeys(map(_role, resolved.actors))
    }
    print(yaml.safe_dump(data, sort_keys=False), end="")
    apart = ", ".join(sorted(AUTO_PROCESSES)) or "none"
    print(f"# placement auto gives a process of its own to: {apart}")
    for actor in resolved.actors:
        print(f"# {actor.name} lives on {actor.node}")


def _role(actor: ActorPlan) -> str:
    return actor.name.partition("/")[0]


def _agreed(options: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Options that have one value wherever they are."""
    agreed: dict[str, Any] = {}
    differing: set[str] = set()
    for values in options.values():
        for name, value in values.items():
            if agreed.setdefault(name, value) != value:
                differing.add(name)
    return {name: value for name, value in agreed.items() if name not in differing}


def _written(entry: Any) -> dict[str, Any]:
    """A node or an actor as it was written, without what it does not say."""
    return {key: value for key, value in msgspec.to_builtins(entry).items() if value not in (None, False, {})}


def _actor(
    topology: Topology, name: str, members: list[ActorPlan], settings: dict[str, Any]
) -> dict[str, Any]:
    """An actor's entry: its class, where it was told to live, and the options in which it differs."""
    entry = _written(topology.actors[name]) if name in topology.actors else {}
    own = {key: value for key, value in json.loads(members[0].options).items() if settings.get(key) != value}
    return {"class": members[0].cls, **entry} | ({"options": own} if own else {})


def draw(arguments: dict[str, Any]) -> None:
    """Draws nodes with their actors, and the messages between them."""
    _, resolved = _load(arguments)
    width = max(len(actor.name) + len(actor.cls) for actor in resolved.actors) + 6
    for node in resolved.nodes:
        kind = (
            "this process" if node.name == resolved.root else "joins by itself" if node.joins else "process"
        )
        title = f" {node.name} ({kind}) "
        print("┌" + title + "─" * max(0, width - len(title)) + "┐")
        for actor in resolved.actors:
            if actor.node == node.name:
                print(f"│  {actor.name}  {actor.cls}".ljust(width + 1) + "│")
        print("└" + "─" * width + "┘")
    home = {actor.name.partition("/")[0]: actor.node for actor in resolved.actors}
    for sender, receiver, messages in MESSAGES:
        if sender in home and receiver in home:
            line = "──▶" if home[sender] == home[receiver] else "══▶"
            print(f"  {sender:>11} {line} {receiver:<11}  {messages}")
    print("  ──▶ within a process, ══▶ over ZeroMQ")
