"""Resolution of a topology: the node, class and options of every actor, from the topology as its user wrote it.

Defaults are filled in, and everything is checked that can be known without starting anything. Every error names
the place and, for a name, the nearest valid one.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from pageant.actors.runtime.address import index_of, model_of, replica_of, replica_prefix, role_of
from pageant.actors.runtime.classes import load_actor_class
from pageant.actors.runtime.devices import local_devices
from pageant.actors.runtime.lease import LeaseTerms
from pageant.actors.runtime.node_plans import UNPLACED, NodePlans, entry_of, in_link_order
from pageant.actors.runtime.placement import place
from pageant.actors.runtime.plans import ActorPlan, NodePlan
from pageant.actors.runtime.replicating import (
    Indexes,
    check_devices,
    indexes_of,
    is_of_model,
    replicas_near,
    replicated,
    with_nodes,
)
from pageant.actors.runtime.topology import FORM, ActorSpec, Topology, Transport, WireMode, choices
from pageant.actors.runtime.transport.keys import read_keys
from pageant.protocol.checks import expected
from pageant.protocol.errors import TopologyError
from pageant.protocol.roles import ROLES, Role


@dataclass(frozen=True)
class Cast:
    """The default actors of a topology."""

    classes: Mapping[str, str]
    """The class of each, by name."""
    groups: frozenset[str]
    """Actors that always form a group."""
    root_actors: frozenset[str]
    """Actors that must live with the caller."""
    single: frozenset[str] = frozenset()
    """Actors of which there is exactly one member."""
    extra_settings: frozenset[str] = frozenset()
    """Names of settings that reach no actor (the frontend's own)."""
    optional: Mapping[str, str] = field(default_factory=dict)
    """Classes of actors that take part only if a topology names them, or calls for them."""
    shared: frozenset[str] = frozenset()
    """Actors that all models of a topology share."""
    called_for: Callable[[Topology], Iterable[str]] = lambda topology: ()
    """Returns the optional actors that a topology calls for."""
    needs: Mapping[str, str] = field(default_factory=dict)
    """Settings that are useless unless this actor knows them."""


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
    """Returns the topology with other replicas, by their numbers; None where no model has any."""
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
    root = written.root
    found = {f"{name}/": of for name, of in (of_models or {}).items()} | {"": settings or {}}
    chosen = {prefix: {**found.get(prefix, {}), **part.settings} for prefix, part in parts.items()}
    specs = {
        name: spec
        for prefix, part in parts.items()
        for name, spec in replicated(
            _with_defaults(part, cast, prefix, parts), prefix, indexes[prefix], chosen[prefix]
        )
    }
    for prefix, numbers in indexes.items():
        chosen |= {replica_prefix(prefix, number): chosen[prefix] for number in numbers}
    classes = {
        name: load_actor_class(spec.cls or "", f"{entry_of(name)}.class") for name, spec in specs.items()
    }
    _check_roles(specs, classes)
    _check_names(specs, classes, cast)
    for prefix, part in parts.items():
        own = part.settings.keys() - (topology.settings.keys() if prefix else ())
        known = {name: cls for name, cls in classes.items() if not prefix or name.startswith(prefix)}
        _check_settings(sorted(own), prefix, known, cast)
        _check_needs(chosen[prefix], prefix, classes, cast)
    sizes = {name: _size(classes[name], name, spec, chosen, cast) for name, spec in specs.items()}
    specs = {name: _with_members(name, spec, *sizes[name]) for name, spec in specs.items()}
    wanted = written.wanted(specs)
    nodes, where = place(topology.placement, root, written.plans, wanted, cast.root_actors)
    nodes = written.with_launcher(nodes)
    _check_nodes(specs, nodes)
    _check_root_actors(where, root, cast)
    actors = []
    on_devices = []
    far = [name for name, node in nodes.items() if node.may_be_far]
    for name, spec in specs.items():
        cls = classes[name]
        grouped = role_of(name) in cast.groups or len(where[name]) > 1
        near = replicas_near(where, name, far) if index_of(replica_of(name)) is not None else 1
        for index, home in enumerate(where[name]):
            given = _with_device(cls, name, spec, nodes[home].device if home != UNPLACED else None)
            if near > 1 and "replicas_near" in cls.Options.__struct_fields__:
                given = {"replicas_near": near, **given}
            options = _options(cls, name, given, chosen[replica_of(name)])
            found_device = msgspec.json.decode(options).get("device")
            if isinstance(found_device, str):
                written.check_option(found_device, home, f"{entry_of(name)}.options.device")
            device = spec.device if home == UNPLACED else None
            member = f"{name}/{index}" if grouped else name
            if isinstance(found_device, str) and home != UNPLACED:
                on_devices.append((member, home, found_device))
            is_bound = sizes[name][0] > 1
            path = cls.follower if is_bound and index else spec.cls or ""
            bound = name if is_bound else ""
            actors.append(ActorPlan(member, home, path, options, device, bound=bound))
    written.check_cores(on_devices)
    check_devices((member, home if home in far else "", device) for member, home, device in on_devices)
    return Resolved(
        root=root,
        nodes=in_link_order(nodes, root),
        actors=tuple(actors),
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


def _with_device(cls: Any, name: str, spec: ActorSpec, device: str | None) -> dict[str, Any]:
    """Return an actor's own options, with the device of its node, if the node has one and the actor takes one."""
    if device is None or "device" not in cls.Options.__struct_fields__:
        return spec.options
    own = spec.options.get("device", device)
    if own != device:
        place = f"{entry_of(name)}.options.device"
        raise TopologyError(place, f"found {own!r}, but its node has {device!r}")
    return {**spec.options, "device": device}


def _with_defaults(
    topology: Topology, cast: Cast, prefix: str, parts: Collection[str]
) -> Iterator[tuple[str, ActorSpec]]:
    """Yield the cast's actors, as the topology has them, then its own additions, by their full names.

    With several models, each model has its own actors, and the shared ones are at the top.
    """
    due = [
        name
        for name in (*cast.classes, *cast.called_for(topology))
        if len(parts) == 1 or (name in cast.shared) == (not prefix)
    ]
    for name in dict.fromkeys((*due, *topology.actors)):
        place = entry_of(prefix + name)
        spec = topology.actors.get(name, ActorSpec())
        cls = spec.cls or cast.classes.get(name) or cast.optional.get(name)
        if cls is None:
            known = (*cast.classes, *cast.optional)
            raise TopologyError(
                place, f"no default actor has this name, and no class is given; {expected(name, known)}"
            )
        if (
            len(parts) > 1
            and name in (*cast.classes, *cast.optional)
            and (name in cast.shared) == bool(prefix)
        ):
            other = f"models.NAME.actors.{name}: each model has its own" if not prefix else f"actors.{name}"
            raise TopologyError(place, f"with several models this stands at {other}")
        if spec.nodes == ():
            raise TopologyError(f"{place}.nodes", "found none; expected at least one")
        if spec.count is not None and not 1 <= spec.count <= 1024:
            raise TopologyError(f"{place}.count", f"found {spec.count}; expected 1 to 1024")
        yield prefix + name, msgspec.structs.replace(spec, cls=cls)


def _size(
    cls: Any, name: str, spec: ActorSpec, chosen: Mapping[str, Mapping[str, Any]], cast: Cast
) -> tuple[int, str]:
    """Return how many actors an entry's options make of it, as a group that lives as one, and which options.

    Raises:
        TopologyError: there is exactly one of such an actor otherwise, and the entry says another number.
    """
    options = msgspec.json.decode(
        _options(cls, name, spec.options, chosen[replica_of(name)]), type=cls.Options
    )
    size, because = options.num_members, options.members_because
    found = max(spec.count or 1, len(spec.nodes or ()))
    if size == 1 and found > 1 and role_of(name) in cast.single:
        raise TopologyError(entry_of(name), f"found {found} of it; expected exactly one")
    if size > 1 and not cls.follower:
        raise TopologyError(
            f"{entry_of(name)}.class",
            f"{cls.__qualname__} leads no group; expected one that does, for {because}",
        )
    return size, because


def _with_members(name: str, spec: ActorSpec, size: int, because: str) -> ActorSpec:
    """Return an entry with as many members as its options make of it.

    Raises:
        TopologyError: it says another number.
    """
    if size == 1:
        return spec
    place = entry_of(name)
    if spec.nodes is not None and len(spec.nodes) != size:
        raise TopologyError(
            f"{place}.nodes", f"found {len(spec.nodes)} nodes; expected {size}, for {because}"
        )
    if spec.count not in (None, size):
        raise TopologyError(f"{place}.count", f"found {spec.count}; expected {size}, for {because}, or none")
    return msgspec.structs.replace(spec, count=size)


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


def _check_roles(specs: Mapping[str, ActorSpec], classes: Mapping[str, type]) -> None:
    """Refuse an actor that has the name of a role but not the role."""
    for name in specs:
        role: Role | None = ROLES.get(role_of(name))
        if role is not None and getattr(classes[name], "role", None) is not role:
            raise TopologyError(
                f"{entry_of(name)}.class",
                f"{classes[name].__qualname__} does not take the role of {role.name}; set "
                f"`role = {role.name.upper()}` "
                "(from pageant.protocol.roles) and handle its messages",
            )


def _check_names(specs: Mapping[str, ActorSpec], classes: Mapping[str, type], cast: Cast) -> None:
    """Refuse an added actor that nothing would talk to: its name is one of the cast, misspelt.

    A class with a role is meant to replace the cast's actor of that role. A class without one may have any name
    that is not close to one of the cast's.
    """
    known = (*cast.classes, *cast.optional)
    for name in specs:
        role = role_of(name)
        if role in known or _is_referred_to(role, specs):
            continue
        takes: Role | None = getattr(classes[name], "role", None)
        if takes is not None and takes.name in known:
            meant = takes.name
        elif close := difflib.get_close_matches(role, known, n=1, cutoff=0.8):
            meant = close[0]
        else:
            continue
        raise TopologyError(
            entry_of(name), f"nothing sends messages to an actor of this name; did you mean {meant!r}?"
        )


def _is_referred_to(name: str, specs: Mapping[str, ActorSpec]) -> bool:
    """Tell whether another actor's options name this one."""
    texts = (text for spec in specs.values() for text in _texts(spec.options))
    return any(name == text.partition("/")[0] for text in texts)


def _texts(value: Any) -> Iterator[str]:
    """Yield every text within options."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from _texts(one)
    elif isinstance(value, Sequence):
        for one in value:
            yield from _texts(one)


def _check_settings(settings: Iterable[str], prefix: str, classes: Mapping[str, Any], cast: Cast) -> None:
    known = {field for cls in classes.values() for field in cls.Options.__struct_fields__}
    known |= FORM | cast.extra_settings
    for name in settings:
        if name not in known:
            place = f"models.{prefix}{name}".replace("/", ".") if prefix else str(name)
            raise TopologyError(place, f"no such key; {expected(str(name), known)}")


def _check_needs(settings: Mapping[str, Any], prefix: str, classes: Mapping[str, Any], cast: Cast) -> None:
    for name, actor in cast.needs.items():
        cls = next((one for full, one in classes.items() if is_of_model(full, prefix, actor)), None)
        if settings.get(name) is not None and cls is not None and name not in cls.Options.__struct_fields__:
            raise TopologyError(
                f"{entry_of(prefix + actor)}.class",
                f"{cls.__qualname__} has no option {name!r}; expected a class that has, or no {name}",
            )


def _options(cls: Any, name: str, given: Mapping[str, Any], settings: Mapping[str, Any]) -> bytes:
    """Return an actor's options as JSON: the settings that it knows, overridden by its own entry."""
    fields = cls.Options.__struct_fields__
    for option in given:
        if option not in fields:
            raise TopologyError(
                f"{entry_of(name)}.options.{option}", f"no such option; {expected(option, fields)}"
            )
    merged = {key: value for key, value in settings.items() if key in fields} | dict(given)
    try:
        encoded = msgspec.json.encode(msgspec.convert(merged, cls.Options))
        # The node decodes them, too; JSON has no NaN, for one.
        msgspec.json.decode(encoded, type=cls.Options)
        return encoded
    except (ValueError, TypeError, RecursionError) as error:  # ValidationError is a ValueError
        if isinstance(error.__cause__, TopologyError):  # an option that names something checked it itself
            raise error.__cause__ from None
        message, _, path = str(error).partition(" - at ")
        option = path.strip("`").removeprefix("$")
        key = option.lstrip(".").partition(".")[0].partition("[")[0]
        message += choices(cls.Options, key, merged)
        if not option:
            option, message = _blamed(message, fields)
            key = option.lstrip(".")
        where = f"{entry_of(name)}.options{option}"
        if key in settings and key not in given:
            model = model_of(replica_of(name))
            where = f"models.{model}{key}".replace("/", ".") if model else key
        raise TopologyError(where, message) from None


def _blamed(message: str, fields: Collection[str]) -> tuple[str, str]:
    """Split the message of an option's own check, `NAME is VALUE; ...`, into the place of that option and the
    rest.
    """
    match = re.match(r"(\w+)(?: is |: )(.*)", message, re.DOTALL)
    if match is None or match[1] not in fields:
        return "", message
    return f".{match[1]}", match[2] if match[2].startswith("found ") else f"found {match[2]}"
