"""Division of a topology into pods: which nodes are pods of their own, and the topology as those read it.

A node that computes, or that joins from another host, becomes a pod. A node whose name has `{replica}` becomes one pod
for each replica: a StatefulSet, whose pod's number is the replica's. All other nodes stay in the root's pod.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from pageant.actors.runtime.devices import cores_of, is_cpu
from pageant.actors.runtime.node_plans import resolve_likes, root_of
from pageant.actors.runtime.replicating import is_replicated
from pageant.actors.runtime.topology import REPLICA_MARK, Topology
from pageant.actors.runtime.topology_specs import ActorSpec, NodeSpec
from pageant.protocol.errors import TopologyError

ENGINE = "engine-" + REPLICA_MARK
"""Node of a replica's actors where the topology names none."""
OWNED_BY_DEFAULT = ("executor", "scheduler", "blocks", "detokenizer", "grammar")


@dataclass(frozen=True)
class PodPlan:
    """Pods of one node of the topology."""

    node: str
    """The node's name; with `{replica}` where each replica has such a pod."""
    name: str
    """The same as a part of names in Kubernetes."""
    count: int
    gpus: int
    cpus: int
    """Cores that it asks for; 0 leaves that open."""
    models: tuple[str, ...]
    """The names of the models whose replicas compute there; the empty one in a topology of one model."""

    @property
    def is_replica(self) -> bool:
        """Tell whether there is one for each replica."""
        return REPLICA_MARK in self.node


@dataclass(frozen=True)
class Division:
    """A topology, divided into pods."""

    topology: dict[str, Any]
    """Plain data of the topology as the root's pod reads it."""
    root: str
    gpus: int
    """GPUs of the root's pod."""
    port: int
    """Where the root's pod serves HTTP."""
    pods: tuple[PodPlan, ...]


def divide(topology: Topology, keys: str) -> Division:
    """Return the pods of a topology.

    Args:
        keys: the path of the topology's key in each pod.

    Raises:
        TopologyError: it starts nodes by a launcher, which Kubernetes does.
    """
    _refuse_launchers(topology)
    topology = _with_engines(msgspec.structs.replace(topology, nodes=resolve_likes(topology.nodes)))
    root = root_of(topology.nodes)
    computing = {node for _, spec in _entries(topology, "executor") for node in _nodes_of(spec)}
    pods = tuple(
        _pod(topology, name, spec)
        for name, spec in topology.nodes.items()
        if name != root and (spec.host is not None or spec.device is not None or name in computing)
    )
    own = {pod.node for pod in pods}
    nodes = {name: _as_joining(spec) if name in own else spec for name, spec in topology.nodes.items()}
    changed = msgspec.structs.replace(topology, nodes=nodes, listen=None, keys=keys if pods else None)
    http = topology.actors.get("http", ActorSpec())
    return Division(
        topology=_written(changed),
        root=root,
        gpus=_gpus_of_root(topology, own),
        port=int(http.options.get("port", 8000)),
        pods=pods,
    )


def _refuse_launchers(topology: Topology) -> None:
    places = [f"nodes.{name}.launcher" for name, node in topology.nodes.items() if node.launcher is not None]
    if topology.launcher is not None:
        places.append("launcher")
    if places:
        raise TopologyError(places[0], "found one; expected none: Kubernetes starts the nodes")


def _parts(topology: Topology) -> Iterator[tuple[str, Topology]]:
    """Yield each model's part of a topology, by the model's name."""
    if not topology.models:
        yield "", topology
    yield from topology.models.items()


def _entries(topology: Topology, role: str) -> Iterator[tuple[str, ActorSpec]]:
    """Yield each model's entry of a role, by the model's name."""
    for name, part in _parts(topology):
        if role in part.actors:
            yield name, part.actors[role]


def _nodes_of(spec: ActorSpec) -> tuple[str, ...]:
    return tuple(node for node in (spec.node, *(spec.nodes or ())) if node is not None)


def _is_placed(spec: ActorSpec) -> bool:
    return bool(_nodes_of(spec) or spec.host or spec.device)


def _with_engines(topology: Topology) -> Topology:
    """Return a topology in which each replica has a node of its own, where it says nothing of their nodes."""
    models, nodes = dict(topology.models), dict(topology.nodes)
    for name, part in _parts(topology):
        if not is_replicated(topology, part) or _is_placed(part.actors.get("executor", ActorSpec())):
            continue
        ranks = _size_of(topology, part)
        homes = [ENGINE if rank == 0 else f"{ENGINE}-rank-{rank}" for rank in range(ranks)]
        device = part.settings.get("device", topology.settings.get("device"))
        nodes |= {home: NodeSpec(process=True, device=device) for home in homes}
        placed = _placed(part, homes)
        if topology.models:
            models[name] = placed
        else:
            topology = placed
    nodes = {root_of(nodes): NodeSpec(), **nodes}
    return msgspec.structs.replace(topology, nodes=nodes, models=models)


def _placed(part: Topology, homes: list[str]) -> Topology:
    """Return a model's part with the actors that replicas own on these nodes, the executor's group on all of them."""
    actors = dict(part.actors)
    also = ["drafter"] if "drafter" in actors else []
    for role in (*OWNED_BY_DEFAULT, *also):
        spec = actors.get(role, ActorSpec())
        if not _is_placed(spec):
            where = {"nodes": tuple(homes)} if role == "executor" and len(homes) > 1 else {"node": homes[0]}
            actors[role] = msgspec.structs.replace(spec, **where)
    settings = {name: value for name, value in part.settings.items() if name != "device"}
    return msgspec.structs.replace(part, actors=actors, settings=settings)


def _size_of(topology: Topology, part: Topology) -> int:
    """Return how many executors a model's group has."""
    options = part.actors.get("executor", ActorSpec()).options
    found = {**topology.settings, **part.settings, **options}
    sizes = [found.get(name, 1) for name in ("tensor_parallel", "pipeline_parallel")]
    return max(1, sizes[0]) * max(1, sizes[1]) if all(isinstance(size, int) for size in sizes) else 1


def _pod(topology: Topology, name: str, spec: NodeSpec) -> PodPlan:
    users = [
        (model, part)
        for model, part in _parts(topology)
        if any(name in _nodes_of(entry) for entry in part.actors.values())
    ]
    replicas = [part.replicas for _, part in users] or [topology.replicas]
    device = spec.device
    return PodPlan(
        node=name,
        name=re.sub(r"[^a-z0-9]+", "-", name.replace(REPLICA_MARK, "").lower()).strip("-"),
        count=max(replicas) if REPLICA_MARK in name else 1,
        gpus=0 if device is None or is_cpu(device) else 1,
        cpus=_num_cores(device),
        models=tuple(model for model, part in users if is_replicated(topology, part)),
    )


def _num_cores(device: str | None) -> int:
    """Return how many cores a device of a node names, such as 4 of `cpu:0-3`."""
    if device is None or not is_cpu(device):
        return 0
    return len(cores_of(device.replace(REPLICA_MARK, "0")) or ())


def _as_joining(spec: NodeSpec) -> NodeSpec:
    """Return a node that joins from its pod, which sees but its own devices."""
    device = spec.device
    if device is not None:
        device = "cpu" if is_cpu(device) else device.partition(":")[0]
    return NodeSpec(host="pod", device=device)


def _gpus_of_root(topology: Topology, pods: Iterable[str]) -> int:
    """Return the GPUs of executors that live with the root."""
    found = 0
    for _, part in _parts(topology):
        spec = part.actors.get("executor", ActorSpec())
        device = spec.options.get("device", spec.device or part.settings.get("device", ""))
        if isinstance(device, str) and device.startswith("cuda") and not {*_nodes_of(spec)} & {*pods}:
            found += _size_of(topology, part)
    return found


def _written(topology: Topology) -> dict[str, Any]:
    """Return the plain data of a topology, without what is as it is by default."""
    defaults = msgspec.to_builtins(Topology())
    data = {
        key: value
        for key, value in msgspec.to_builtins(topology).items()
        if key not in ("settings", "models") and value != defaults[key]
    }
    for section in ("nodes", "actors"):
        if section in data:
            data[section] = {name: _short(entry) for name, entry in data[section].items()}
    if topology.models:
        data["models"] = {name: _model_keys(topology, part) for name, part in topology.models.items()}
    return data | dict(topology.settings)


def _model_keys(topology: Topology, part: Topology) -> dict[str, Any]:
    """Return a model's own keys: those of the top reach it anyway."""
    keys = {name: value for name, value in _written(part).items() if topology.settings.get(name) != value}
    if part.replicas != topology.replicas:
        keys["replicas"] = part.replicas
    return keys


def _short(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in entry.items() if value not in (None, {}, False, [], ())}
