"""`pageant topology check | show | draw`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import yaml

from pageant.actors.client.resolved_models import resolve_topology
from pageant.actors.client.settings import topology_of
from pageant.actors.runtime.address import replica_of, role_of
from pageant.actors.runtime.placement import AUTO_BESIDE, AUTO_PROCESSES
from pageant.actors.runtime.plans import ActorPlan
from pageant.actors.runtime.resolving import Resolved
from pageant.actors.runtime.topology import Topology
from pageant.models import Checkpoint

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
        f"sound: {len(resolved.actors)} actors on {len(resolved.nodes)} nodes ({processes} with processes of their own)"
    )
    for line in _quantised(resolved):
        print(line)


def _quantised(resolved: Resolved) -> Iterator[str]:
    """Yield how the weights of each model are kept that comes quantised."""
    executors = [actor for actor in resolved.actors if role_of(actor.name).startswith("executor")]
    for path in dict.fromkeys(json.loads(actor.options).get("model") for actor in executors):
        ready = None if path is None else Checkpoint(path).ready
        if ready is not None:
            yield f"{Path(path).name}: {ready.description}"


def show(arguments: dict[str, Any]) -> None:
    """Prints the topology with every default filled in, in the form that it is written in.

    What all actors that have an option agree on stands at the top, as a setting, so that it can still be
    overridden there; who lives where stands beside each actor, unless it was written.
    """
    topology, resolved = _load(arguments)
    settings = {**_agreed(resolved.actors), **topology.settings}
    data: dict[str, Any] = {"model": topology.model, "placement": resolved.placement, "wire": resolved.wire}
    data |= {"transport": resolved.transport, "replicas": topology.replicas, "seed": resolved.seed}
    data |= {name: getattr(topology, name) for name in ("heartbeat_seconds", "suspicion_seconds")}
    form = msgspec.to_builtins(topology)
    data |= {name: form[name] for name in ("listen", "keys", "launcher") if form.get(name) is not None}
    data |= _shown(settings)
    data["nodes"] = {name: _written(node) for name, node in topology.nodes.items()} or {resolved.root: {}}
    for name, part in topology.models.items():
        actors = _of(resolved, f"{name}/")
        own = {key: value for key, value in _agreed(actors).items() if settings.get(key) != value}
        shown = {"model": part.model, **_shown(own), "actors": _entries(part, actors, {**settings, **own})}
        data.setdefault("models", {})[name] = shown
    data["actors"] = _entries(topology, _of(resolved, ""), settings)
    if topology.models:
        del data["model"]
    print(yaml.safe_dump(data, sort_keys=False), end="")
    apart = ", ".join(sorted(AUTO_PROCESSES)) or "none"
    print(f"# placement auto gives a process of its own to: {apart}")
    for name, other in AUTO_BESIDE.items():
        print(f"# and lets {name} live where {other} does")
    for actor in resolved.actors:
        print(f"# {actor.name} lives on {actor.node}")


FILLED_IN = ("model", "served")  # by what is written elsewhere


def _shown(settings: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if value is not None and name not in FILLED_IN}


def _of(resolved: Resolved, replica: str) -> list[ActorPlan]:
    return [actor for actor in resolved.actors if replica_of(actor.name) == replica]


def _agreed(actors: Sequence[ActorPlan]) -> dict[str, Any]:
    """Options that have one value wherever they are."""
    agreed: dict[str, Any] = {}
    differing: set[str] = set()
    for actor in actors:
        for name, value in json.loads(actor.options).items():
            if agreed.setdefault(name, value) != value:
                differing.add(name)
    return {name: value for name, value in agreed.items() if name not in differing}


def _written(entry: Any) -> dict[str, Any]:
    """A node or an actor as it was written, without what it does not say."""
    return {key: value for key, value in msgspec.to_builtins(entry).items() if value not in (None, False, {})}


def _entries(
    topology: Topology, actors: Sequence[ActorPlan], settings: dict[str, Any]
) -> dict[str, dict[str, Any]]:
    """Actors' entries: the class, where it was told to live, and the options in which it differs."""
    entries: dict[str, dict[str, Any]] = {}
    for actor in actors:
        name = role_of(actor.name)
        entry = _written(topology.actors[name]) if name in topology.actors else {}
        own = {key: value for key, value in json.loads(actor.options).items() if settings.get(key) != value}
        own = {key: value for key, value in own.items() if key not in FILLED_IN}
        entries.setdefault(name, {"class": actor.cls, **entry} | ({"options": own} if own else {}))
    return entries


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
    shared = {role_of(actor.name): actor.node for actor in _of(resolved, "")}
    for replica in dict.fromkeys(replica_of(actor.name) for actor in resolved.actors):
        own = {role_of(actor.name): actor.node for actor in _of(resolved, replica)}
        home = shared | own
        for sender, receiver, messages in MESSAGES:
            if sender in home and receiver in home and not own.keys().isdisjoint((sender, receiver)):
                line = "──▶" if home[sender] == home[receiver] else "══▶"
                sides = [(replica if role in own else "") + role for role in (sender, receiver)]
                print(f"  {sides[0]:>11} {line} {sides[1]:<11}  {messages}")
    print("  ──▶ within a process, ══▶ over ZeroMQ")
