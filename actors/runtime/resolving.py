"""Resolution of a topology: the node, class and options of every actor, from the topology as its user wrote it.

Defaults are filled in, and everything is checked that can be known without starting anything. Every error names
the place and, for a name, the nearest valid one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from pageant.actors.runtime.actor_options import with_device
from pageant.actors.runtime.address import index_of, replica_of, replica_prefix, role_of
from pageant.actors.runtime.cast import Cast
from pageant.actors.runtime.devices import local_devices
from pageant.actors.runtime.entries import Entries, Settings, entries_of
from pageant.actors.runtime.lease import LeaseTerms
from pageant.actors.runtime.node_plans import UNPLACED, NodePlans, entry_of, in_link_order
from pageant.actors.runtime.placement import place
from pageant.actors.runtime.plans import ActorPlan, NodePlan
from pageant.actors.runtime.replicating import Indexes, check_devices, indexes_of, replicas_near, with_nodes
from pageant.actors.runtime.stores import STORE, StoresInUse, spread, stores_in_use
from pageant.actors.runtime.topology import Topology, Transport, WireMode
from pageant.actors.runtime.topology_specs import ActorSpec
from pageant.actors.runtime.transport.keys import read_keys
from pageant.protocol.checks import expected
from pageant.protocol.errors import TopologyError

__all__ = ["Cast", "Resolved", "resolve"]


@dataclass(frozen=True)
class Resolved:
    """A topology that can be started."""

    root: str
    nodes: tuple[NodePlan, ...]
    actors: tuple[ActorPlan, ...]
    wire: WireMode
    transport: Transport
    listen: str | None
    keys: str | None
    seed: int
    placement: str
    lease: LeaseTerms
    grow: Callable[[Indexes], Resolved] | None = None
    """Return the topology with other replicas, by their numbers; None where no model has any."""
    replicas: Indexes = field(default_factory=dict)
    """The numbers of each model's replicas, by its prefix."""


def resolve(
    topology: Topology,
    cast: Cast,
    settings: Mapping[str, Any] | None = None,
    of_models: Mapping[str, Mapping[str, Any]] | None = None,
    devices: Sequence[str] | None = None,
    present: Indexes | None = None,
) -> Resolved:
    """Return every node and actor of a topology, with its class loaded and its options valid.

    Args:
        settings: more settings, such as what was read from the model's folder; the topology's own win.
        of_models: the same for each of several models.
        devices: the devices of this host; None looks for them.
        present: the numbers of each model's replicas, where they are no more those of the topology.

    Raises:
        TopologyError: see `parse`.
    """
    if topology.keys is not None:
        read_keys(Path(topology.keys))
    parts = {"": topology, **{f"{name}/": one for name, one in topology.models.items()}}
    indexes = indexes_of(topology, parts, present)
    devices = local_devices() if devices is None else devices
    written = NodePlans(with_nodes(topology, indexes), devices)
    found = {f"{name}/": of for name, of in (of_models or {}).items()} | {"": settings or {}}
    entries = entries_of(topology, parts, cast, indexes, _settings(parts, indexes, found))
    nodes, where = _place(topology, entries, written, cast)
    return Resolved(
        root=written.root,
        nodes=in_link_order(nodes, written.root),
        actors=_plan_actors(entries, nodes, where, written, cast),
        wire=topology.wire,
        transport=topology.transport,
        listen=topology.listen,
        keys=topology.keys,
        seed=topology.seed,
        placement=topology.placement,
        lease=LeaseTerms(topology.heartbeat_seconds, topology.suspicion_seconds),
        grow=(lambda present: resolve(topology, cast, settings, of_models, devices, present))
        if any(indexes.values())
        else None,
        replicas=indexes,
    )


def _settings(
    parts: Mapping[str, Topology], indexes: Indexes, found: Mapping[str, Mapping[str, Any]]
) -> Settings:
    """Return the settings of each model and replica: those found elsewhere, overridden by the topology's own."""
    settings = {prefix: {**found.get(prefix, {}), **part.settings} for prefix, part in parts.items()}
    for prefix, numbers in indexes.items():
        settings |= {replica_prefix(prefix, number): settings[prefix] for number in numbers}
    return settings


def _place(
    topology: Topology, entries: Entries, written: NodePlans, cast: Cast
) -> tuple[dict[str, NodePlan], dict[str, tuple[str, ...]]]:
    """Return the nodes, by name, and the nodes of each entry's members."""
    wanted = written.wanted(entries.specs)
    nodes, where = place(topology.placement, written.root, written.plans, wanted, cast.root_actors)
    nodes = written.with_launcher(nodes)
    for name, spec in entries.specs.items():
        if spec.each is not None:
            where[name] = spread(spec, where, [*nodes], written.root, written.host_of)
    return nodes, where


def _plan_actors(
    entries: Entries,
    nodes: Mapping[str, NodePlan],
    where: Mapping[str, tuple[str, ...]],
    written: NodePlans,
    cast: Cast,
) -> tuple[ActorPlan, ...]:
    """Return a plan for each member of each entry, once nodes, options and devices are checked."""
    held = entries.options(STORE, entries.specs[STORE].options) if STORE in entries.specs else None
    stores = stores_in_use(entries.classes.get(STORE), held, where, written.host_of)
    _check_nodes(entries.specs, nodes)
    _check_root_actors(where, written.root, cast)
    planner = _Planner(entries, nodes, where, written, stores)
    actors = [
        planner.plan(name, index, is_numbered=role_of(name) in cast.groups or len(where[name]) > 1)
        for name in entries.specs
        for index in range(len(where[name]))
    ]
    written.check_cores(planner.on_devices)
    far = planner.far
    check_devices(
        (member, home if home in far else "", device) for member, home, device in planner.on_devices
    )
    return tuple(actors)


@dataclass
class _Planner:
    """Plans one member after another, and notes the devices that they take."""

    entries: Entries
    nodes: Mapping[str, NodePlan]
    where: Mapping[str, tuple[str, ...]]
    """The nodes of each entry's members."""
    written: NodePlans
    stores: StoresInUse
    on_devices: list[tuple[str, str, str]] = field(default_factory=list)
    """The member, node and device of every member with a device and a place."""

    @property
    def far(self) -> list[str]:
        """The nodes that may be on another host."""
        return [name for name, node in self.nodes.items() if node.may_be_far]

    def plan(self, name: str, index: int, *, is_numbered: bool) -> ActorPlan:
        """Return the plan of one member of an entry. Raises TopologyError for an option that is wrong there."""
        home, spec, cls = self.where[name][index], self.entries.specs[name], self.entries.classes[name]
        options = self.entries.options(name, self._own_options(name, home))
        member = f"{name}/{index}" if is_numbered else name
        device = msgspec.json.decode(options).get("device")
        if isinstance(device, str):
            self.written.check_option(device, home, f"{entry_of(name)}.options.device")
            if home != UNPLACED:
                self.on_devices.append((member, home, device))
        is_bound = self.entries.sizes[name] > 1
        return ActorPlan(
            member,
            home,
            cls.follower if is_bound and index else spec.cls or "",
            options,
            spec.device if home == UNPLACED else None,
            bound=name if is_bound else "",
        )

    def _own_options(self, name: str, home: str) -> dict[str, Any]:
        """Return an entry's options with those that follow from its place: device, neighbours and stores."""
        cls, spec = self.entries.classes[name], self.entries.specs[name]
        given = with_device(cls, name, spec, self.nodes[home].device if home != UNPLACED else None)
        is_replica = index_of(replica_of(name)) is not None
        near = replicas_near(self.where, name, self.far) if is_replica else 1
        if near > 1 and "replicas_near" in cls.Options.__struct_fields__:
            given = {"replicas_near": near, **given}
        return {**self.stores.options(cls, name), **given}


def _check_nodes(specs: Mapping[str, ActorSpec], nodes: Mapping[str, NodePlan]) -> None:
    for name, spec in specs.items():
        for node in (spec.node, *(spec.nodes or ())):
            if node is not None and node not in nodes:
                key = "node" if spec.node is not None else "nodes"
                raise TopologyError(f"{entry_of(name)}.{key}", f"no node {node!r}; {expected(node, nodes)}")


def _check_root_actors(where: Mapping[str, tuple[str, ...]], root: str, cast: Cast) -> None:
    for name in sorted(cast.root_actors & where.keys()):
        for node in where[name]:
            if node != root:
                raise TopologyError(
                    f"actors.{name}.node", f"found {node!r}; expected {root!r}: it lives with its caller"
                )
