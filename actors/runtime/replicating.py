"""Replicas of a model in a topology: its own actors and nodes once for each replica, under the replica's prefix.

A replica owns the actors of `OWNED_ROLES`; all others serve every replica. In the entries of owned actors and in the
names and keys of nodes, `{replica}` stands for the replica's number.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from pageant.actors.runtime.address import index_of, model_of, replica_of, replica_prefix, role_of
from pageant.actors.runtime.devices import is_cpu
from pageant.actors.runtime.kinds import ReplicaKind, check_alike, kind_at, of_kind
from pageant.actors.runtime.topology import REPLICA_MARK, Topology
from pageant.actors.runtime.topology_specs import ActorSpec, NodeSpec
from pageant.protocol.errors import TopologyError
from pageant.protocol.roles import OWNED_ROLES

ROUTER = "router"
Indexes = Mapping[str, tuple[int, ...]]
"""Numbers of each model's replicas, by the model's prefix; none for a model whose actors have no replica's prefix."""


def is_replicated(topology: Topology, part: Topology) -> bool:
    """Tell whether the actors of a model are replicas, by the whole topology and the model's part of it."""
    return part.replicas > 1 or bool(part.kinds) or ROUTER in topology.actors


def indexes_of(topology: Topology, parts: Mapping[str, Topology], present: Indexes | None) -> Indexes:
    """Return the numbers of each model's replicas.

    Args:
        parts: the topology of each model, by its prefix.
        present: the numbers as they are by now, of models whose replicas have come and gone.
    """
    return {
        prefix: (present or {}).get(prefix, tuple(range(part.replicas)))
        if is_replicated(topology, part) and (part.model is not None or not topology.models)
        else ()
        for prefix, part in parts.items()
    }


def with_nodes(topology: Topology, indexes: Indexes) -> Topology:
    """Return a topology with a node for each replica in place of one whose name has the mark."""
    numbers = sorted({number for some in indexes.values() for number in some} or {0})
    nodes: dict[str, NodeSpec] = {}
    for name, node in topology.nodes.items():
        if REPLICA_MARK in name:
            nodes |= {_filled(name, number): _filled(node, number) for number in numbers}
        else:
            nodes[name] = node
    return msgspec.structs.replace(topology, nodes=nodes)


def replicated(
    entries: Iterable[tuple[str, ActorSpec]],
    prefix: str,
    numbers: Sequence[int],
    settings: Mapping[str, Any],
    kinds: Mapping[str, ReplicaKind],
) -> Iterator[tuple[str, ActorSpec]]:
    """Yield the actors of a model by their full names, those that replicas own once for each.

    Args:
        prefix: of the model.
        numbers: of its replicas; none where its actors have no replica's prefix.
        settings: of the model.
        kinds: of its replicas, if there are several.
    """
    for name, spec in entries:
        role = name.removeprefix(prefix)
        if role == "executor":
            check_alike(kinds, spec, settings)
        if role not in OWNED_ROLES or not numbers:
            yield name, _filled(spec, 0)
            continue
        for number in numbers:
            own = of_kind(spec, role, kind_at(kinds, number))
            yield replica_prefix(prefix, number) + role, _with_device(_filled(own, number), role, settings)


def _with_device(spec: ActorSpec, role: str, settings: Mapping[str, Any]) -> ActorSpec:
    """Place each replica's executor on a GPU of its own, where the topology says `cuda` and no more."""
    is_placed = any((spec.node, spec.nodes, spec.host, spec.device))
    if role != "executor" or is_placed or spec.options.get("device", settings.get("device")) != "cuda":
        return spec
    options = {name: value for name, value in spec.options.items() if name != "device"}
    return msgspec.structs.replace(spec, device="cuda", options=options)


def _filled(value: Any, number: int) -> Any:
    """Return a value with a replica's number for the mark, in every text within."""
    if isinstance(value, str):
        return value.replace(REPLICA_MARK, str(number))
    if isinstance(value, msgspec.Struct):
        changes = {name: _filled(getattr(value, name), number) for name in value.__struct_fields__}
        return msgspec.structs.replace(value, **changes)
    if isinstance(value, dict):
        return {key: _filled(one, number) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_filled(one, number) for one in value)
    return value


def replicas_near(homes: Mapping[str, Sequence[str]], name: str, far: Iterable[str]) -> int:
    """Return how many replicas of an executor's model have executors on this host, its own included.

    Args:
        homes: the nodes of each actor's members, by the actor's name.
        name: the executor's.
        far: nodes that may be on other hosts.
    """
    elsewhere, model = {*far}, model_of(replica_of(name))
    near = {
        replica_of(other)
        for other, nodes in homes.items()
        if role_of(other) == "executor"
        and model_of(replica_of(other)) == model
        and not elsewhere.issuperset(nodes)
    }
    return max(1, len(near))


def check_devices(members: Iterable[tuple[str, str, str]]) -> None:
    """Refuse two replicas of a model that would compute on one GPU.

    Args:
        members: name, host ("" is this one) and device of each actor that has a device.
    """
    seen: dict[tuple[str, str, str], str] = {}
    for member, host, device in members:
        prefix = replica_of(member)
        if is_cpu(device) or index_of(prefix) is None:
            continue
        key = model_of(prefix), host, "cuda:0" if device == "cuda" else device
        other = seen.setdefault(key, member)
        if replica_of(other) != prefix:
            raise TopologyError(
                "replicas",
                f"{other} and {member} would both compute on {key[2]}; expected a device for each replica, such as "
                f"nodes of the name gpu-{REPLICA_MARK} with the device cuda:{REPLICA_MARK}",
            )


def is_of_model(name: str, prefix: str, role: str) -> bool:
    """Tell whether an actor of that full name has a role for the model of that prefix, in any of its replicas."""
    return role_of(name) == role and model_of(replica_of(name)) == prefix
