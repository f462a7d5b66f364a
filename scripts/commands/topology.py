"""`pageant topology check | show | draw`."""

from __future__ import annotations

import json
from typing import Any

import yaml

from pageant.actors.frontend.session import resolve_topology
from pageant.actors.frontend.settings import topology_of
from pageant.actors.runtime.placement import AUTO_PROCESSES
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
    """Prints the topology with every default filled in, in the form that it is written in."""
    topology, resolved = _load(arguments)
    actors: dict[str, Any] = {}
    for actor in resolved.actors:
        name = actor.name.partition("/")[0]
        entry = actors.setdefault(
            name, {"class": actor.cls, "nodes": [], "options": json.loads(actor.options)}
        )
        entry["nodes"].append(actor.node)
    data = {
        "model": topology.model,
        "placement": resolved.placement,
        "wire": resolved.wire,
        "transport": resolved.transport,
        "replicas": topology.replicas,
        "seed": resolved.seed,
        "nodes": {
            node.name: {"process": True} if node.process else {"host": "127.0.0.1"} if node.joins else {}
            for node in resolved.nodes
        },
        "actors": actors,
    }
    if resolved.listen is not None:
        data["listen"] = resolved.listen
    apart = ", ".join(sorted(AUTO_PROCESSES)) or "none"
    print(f"# placement auto gives a process of its own to: {apart}")
    print(yaml.safe_dump(data, sort_keys=False), end="")


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
