"""Nodes of a topology, and the placement of its actors on them: by a node's name, a host, or a device.

A device is looked for among the nodes that declare it, then on this host, where a process is made for it.
Otherwise it is left to the nodes that join by themselves. Their devices are known when they join, and
`Supervision` places the actor then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from pageant.actors.runtime.address import group_of, model_of, replica_of
from pageant.actors.runtime.devices import CPU, FORM, FREE, choose, cores_of, missing_cores
from pageant.actors.runtime.launcher import LAUNCHERS, Joining, LauncherPlan
from pageant.actors.runtime.plans import NodePlan
from pageant.actors.runtime.topology import Topology
from pageant.actors.runtime.topology_specs import ActorSpec, LauncherSpec, NodeSpec
from pageant.actors.runtime.transport.addresses import LOOPBACK
from pageant.protocol.checks import expected
from pageant.protocol.errors import TopologyError

# The node of an actor that is placed when a node with its device joins.
UNPLACED = ""


class NodePlans:
    """Nodes of a topology, as its user wrote them.

    Args:
        devices: the devices of this host.

    Raises:
        TopologyError: a node asks for something that is not there.
    """

    def __init__(self, topology: Topology, devices: Sequence[str]) -> None:
        self._devices = tuple(devices)
        # Nodes whose devices an actor has been given.
        self._given: set[str] = set()
        self._written = resolve_likes(topology.nodes)
        self._launcher = _launcher(topology.launcher, "launcher")
        self.root = root_of(self._written)
        self._taken = {node.device for node in self._written.values() if node.device and ":" in node.device}
        self.plans = {
            name: self._plan(name, node, topology.keys is not None, topology.listen is not None)
            for name, node in self._written.items()
        }

    def _plan(self, name: str, node: NodeSpec, has_keys: bool, listens: bool) -> NodePlan:
        place = f"nodes.{name}"
        joins = node.host is not None
        if joins and node.host not in LOOPBACK and not has_keys:
            raise TopologyError(
                f"{place}.host",
                f"found {node.host!r}, but the topology has no keys; other hosts need them: `pageant keys FILE` makes "
                "them, and `keys: FILE` names them",
            )
        if joins and node.host not in LOOPBACK and not listens:
            raise TopologyError(
                "listen",
                f"found nothing, but {place} is on host {node.host!r}; expected an address of this host that it "
                "reaches, such as tcp://10.0.0.1:5700",
            )
        own = _launcher(node.launcher, f"{place}.launcher")
        if own is not None and (joins or not node.process):
            raise TopologyError(f"{place}.launcher", "found one; expected it with process: true alone")
        launcher = (own or self._launcher) if node.process and not joins else None
        device = node.device
        if device is not None:
            _check_device(device, f"{place}.device")
            if not joins and launcher is None:  # the others say what they have when they join
                device = self._take(device, f"{place}.device")
        return NodePlan(
            name, process=node.process and not joins, joins=joins, launcher=launcher, device=device
        )

    def _take(self, device: str, place: str) -> str:
        """Take a device of this host."""
        if missing := missing_cores(device):
            raise TopologyError(place, f"found {missing}")
        found = choose(device, self._devices, () if ":" in device else self._taken)
        if found is None:
            raise TopologyError(place, f"found {device!r}; {self._local_devices_text()}")
        if found != CPU:
            self._taken.add(found)
        return found

    def _local_devices_text(self) -> str:
        taken = sorted(self._taken & set(self._devices))
        return f"this host has {', '.join(self._devices)}" + (
            f"; {', '.join(taken)} is taken" if taken else ""
        )

    def host_of(self, node: str) -> str:
        """Return the host of a node, as far as it is known: "" is this one."""
        plan, written = self.plans.get(node), self._written.get(node)
        if plan is not None and plan.launcher is not None:
            return f"launched {node}"  # where, the launcher alone knows
        host = (written.host if written is not None else None) or ""
        return "" if host in LOOPBACK else host

    def with_launcher(self, plans: Mapping[str, NodePlan]) -> dict[str, NodePlan]:
        """Return the plans with the topology's launcher for nodes that nobody has written."""
        return {
            name: replace(plan, launcher=self._launcher) if plan.process and plan.launcher is None else plan
            for name, plan in plans.items()
        }

    def wanted(self, specs: Mapping[str, ActorSpec]) -> dict[str, tuple[str | None, ...]]:
        """Return, for each actor, the node that each of its members asks for.

        None leaves the node to the placement; `UNPLACED` is decided when nodes join. Nodes that are needed for
        a device are added to the plans.
        """
        return {name: self._wanted(name, spec) for name, spec in specs.items()}

    def _wanted(self, name: str, spec: ActorSpec) -> tuple[str | None, ...]:
        place = entry_of(name)
        given = [key for key in ("node", "nodes", "host", "device") if getattr(spec, key) is not None]
        if len(given) > 1:
            raise TopologyError(place, f"both {given[0]} and {given[1]} are given; expected one of them")
        if spec.nodes is not None:
            if spec.count not in (None, len(spec.nodes)):
                raise TopologyError(
                    f"{place}.count", f"found {spec.count}, but {len(spec.nodes)} nodes are named"
                )
            return spec.nodes
        if spec.host is not None:
            return (self._on_host(spec.host, f"{place}.host"),) * (spec.count or 1)
        if spec.device is not None:
            _check_device(spec.device, f"{place}.device")
            return tuple(self._with_device(name, spec.device) for _ in range(spec.count or 1))
        return (spec.node,) * (spec.count or 1)

    def _on_host(self, host: str, place: str) -> str:
        hosts = {node.host: name for name, node in reversed(self._written.items()) if node.host is not None}
        if host in LOOPBACK and host not in hosts:
            return self.root
        if host not in hosts:
            raise TopologyError(place, f"no node is on host {host!r}; {expected(host, hosts)}")
        return hosts[host]

    def _with_device(self, actor: str, device: str) -> str:
        for name, plan in self.plans.items():
            if plan.device is not None and name not in self._given and fits(plan.device, device):
                self._given.add(name)
                return name
        others = [plan for plan in self.plans.values() if plan.joins and plan.device is None]
        if not others and (missing := missing_cores(device)):
            raise TopologyError(f"{entry_of(actor)}.device", f"found {missing}")
        found = choose(device, self._devices, self._taken)
        if found is not None and not (found == CPU and device == FREE and others):
            if found != CPU:
                self._taken.add(found)
            name = actor.replace("/", "-")
            name = next(
                one for one in (name, *(f"{name}-{n}" for n in range(1, 1025))) if one not in self.plans
            )
            self.plans[name] = NodePlan(name, process=True, launcher=self._launcher, device=found)
            self._given.add(name)
            return name
        if others:
            return UNPLACED
        raise TopologyError(
            f"{entry_of(actor)}.device",
            f"found {device!r}; {self._local_devices_text()}, and no node joins that might have one",
        )

    def check_option(self, device: object, node: str, place: str) -> None:
        """Refuse an actor of this host that is to compute on a device that this host lacks."""
        plan = self.plans.get(node)
        here = plan is None or (not plan.joins and plan.launcher is None)
        if here and isinstance(device, str) and device.startswith("cuda") and self._devices == (CPU,):
            raise TopologyError(place, f"found {device!r}; {self._local_devices_text()}")

    def check_cores(self, members: Sequence[tuple[str, str, str]]) -> None:
        """Refuse two actors of one host that would compute on the same core, or of one process on cores apart.

        Args:
            members: name, node and device of each actor that has a device.
        """
        seen: list[tuple[str, str, str, str, frozenset[int]]] = []
        for member, node, device in members:
            cores = frozenset(cores_of(device) or ())
            host = self.host_of(node)
            for other, other_node, other_host, other_device, others_cores in seen:
                if not cores or not others_cores or host != other_host:
                    continue
                if shared := sorted(cores & others_cores):
                    raise TopologyError(
                        entry_of(group_of(member)),
                        f"{member} computes on {device} and {other} on {other_device}, which both have core "
                        f"{', '.join(map(str, shared))}; expected sets of cores that have none in common",
                    )
                if node == other_node:
                    raise TopologyError(
                        entry_of(group_of(member)),
                        f"{member} on {device} and {other} on {other_device} are both on node {node}; expected a "
                        "process for each, since the threads of a process compute for all of it",
                    )
            seen.append((member, node, host, device, cores))


def in_link_order(nodes: Mapping[str, NodePlan], root: str) -> tuple[NodePlan, ...]:
    """Return the nodes in an order in which each can link to all before it.

    Processes of this host listen where only this host reaches them, so they come before nodes of other hosts.
    """
    return tuple(sorted(nodes.values(), key=lambda node: (node.name != root, not node.may_be_far)))


def fits(device: str, wanted: str) -> bool:
    """Tell whether a node that has `device` offers `wanted`."""
    return wanted in (device, FREE) or device.partition(":")[0] == wanted


def entry_of(name: str) -> str:
    """Return the place of an actor's entry in the topology."""
    prefix = replica_of(name)
    own, prefix = f"actors.{name.removeprefix(prefix)}", model_of(prefix)
    return f"models.{prefix}{own}".replace("/", ".") if prefix else own


def _check_device(device: str, place: str) -> None:
    if not FORM.fullmatch(device):
        raise TopologyError(place, f"found {device!r}; expected cpu, cpu:0-3, cuda, cuda:N, or free")
    try:
        cores_of(device)
    except ValueError as error:
        raise TopologyError(place, f"found {error}") from None


def _launcher(spec: str | LauncherSpec | None, place: str) -> LauncherPlan | None:
    """Return the plan of a launcher, made once to see that it can be."""
    if spec is None:
        return None
    if isinstance(spec, str):
        spec = LauncherSpec(cls=spec)
    plan = LauncherPlan(LAUNCHERS.get(spec.cls, spec.cls), msgspec.json.encode(spec.options).decode())
    plan.make(Joining("", ""), place)
    return plan


def resolve_likes(nodes: Mapping[str, NodeSpec]) -> dict[str, NodeSpec]:
    """Return the nodes with the keys of `like` filled in."""

    def merged(name: str, trail: tuple[str, ...]) -> dict[str, Any]:
        if name in trail:
            raise TopologyError(
                f"nodes.{trail[0]}.like", f"a node includes itself: {' -> '.join((*trail, name))}"
            )
        if name not in nodes:
            raise TopologyError(f"nodes.{trail[-1]}.like", f"no node {name!r}; {expected(name, nodes)}")
        node = nodes[name]
        defaults = NodeSpec()
        own = {
            key: getattr(node, key)
            for key in NodeSpec.__struct_fields__
            if key != "like" and getattr(node, key) != getattr(defaults, key)
        }
        base = merged(node.like, (*trail, name)) if node.like is not None else {}
        return {**base, **own}

    return {name: NodeSpec(**merged(name, ())) for name in nodes}


def root_of(nodes: Mapping[str, NodeSpec]) -> str:
    """Return the one node that is this process."""
    here = [name for name, node in nodes.items() if not node.process and node.host is None]
    if len(here) > 1:
        raise TopologyError(
            "nodes",
            f"{', '.join(here)} would all be this process; expected one, and process: true on the others",
        )
    return here[0] if here else "front"
