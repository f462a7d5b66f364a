"""From a topology as it is written to one that can be started: who lives where, of which class, with which options.

Defaults are filled in, and everything is checked that can be known without starting anything. Every error names the
place and, for a name, the nearest valid one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from pageant.actors.runtime.address import replica_of, role_of
from pageant.actors.runtime.classes import load_actor_class
from pageant.actors.runtime.lease import LeaseTerms
from pageant.actors.runtime.placement import place
from pageant.actors.runtime.restarts import ActorPlan, NodePlan
from pageant.actors.runtime.topology import FORM, ActorSpec, NodeSpec, Topology, Transport, WireMode, choices
from pageant.actors.runtime.transport.keys import read_keys
from pageant.actors.runtime.transport.zeromq import LOOPBACK
from pageant.protocol.checks import expected
from pageant.protocol.errors import TopologyError
from pageant.protocol.roles import ROLES, Role


@dataclass(frozen=True)
class Cast:
    """The default actors: the class of each, by name, and which of them always form a group.

    `extra_settings` are setting names that reach no actor (the front end's own). `optional` are the classes of
    those that take part only where a topology names them, or calls for them. `needs` are settings that are of no use
    unless this actor knows them.
    """

    classes: Mapping[str, str]
    groups: frozenset[str]
    root_actors: frozenset[str]
    single: frozenset[str] = frozenset()  # of which there is exactly one member
    extra_settings: frozenset[str] = frozenset()
    optional: Mapping[str, str] = field(default_factory=dict)
    shared: frozenset[str] = frozenset()  # by all models of a topology
    called_for: Callable[[Topology], Iterable[str]] = lambda topology: ()
    needs: Mapping[str, str] = field(default_factory=dict)


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


def resolve(
    topology: Topology,
    cast: Cast,
    settings: Mapping[str, Any] | None = None,
    of_models: Mapping[str, Mapping[str, Any]] | None = None,
) -> Resolved:
    """Every node and actor of a topology, with its class found and its options valid.

    Args:
        settings: more settings, such as what was read from the model's folder; the topology's own win.
        of_models: the same of each of several models.

    Raises:
        TopologyError: see `parse`.
    """
    written = _resolve_likes(topology.nodes)
    for name, node in written.items():
        if node.host is not None and node.host not in LOOPBACK and topology.keys is None:
            raise TopologyError(
                f"nodes.{name}.host",
                f"found {node.host!r}, but the topology has no keys; other hosts need them: `pageant keys FILE` makes "
                "them, and `keys: FILE` names them",
            )
    if topology.keys is not None:
        read_keys(Path(topology.keys))
    root = _root_of(written)
    parts = {"": topology, **{f"{name}/": one for name, one in topology.models.items()}}
    found = {f"{name}/": of for name, of in (of_models or {}).items()} | {"": settings or {}}
    chosen = {prefix: {**found.get(prefix, {}), **part.settings} for prefix, part in parts.items()}
    specs = {
        name: spec
        for prefix, part in parts.items()
        for name, spec in _with_defaults(part, cast, prefix, parts)
    }
    classes = {
        name: load_actor_class(spec.cls or "", f"{_entry(name)}.class") for name, spec in specs.items()
    }
    _check_roles(specs, classes)
    for prefix, part in parts.items():
        own = part.settings.keys() - (topology.settings.keys() if prefix else ())
        known = {name: cls for name, cls in classes.items() if not prefix or name.startswith(prefix)}
        _check_settings(sorted(own), prefix, known, cast)
        _check_needs(chosen[prefix], prefix, classes, cast)
    nodes, where = place(topology.placement, root, written_nodes(written), _wanted(specs), cast.root_actors)
    _check_nodes(specs, nodes)
    _check_root_actors(where, root, cast)
    actors = []
    for name, spec in specs.items():
        cls = classes[name]
        options = _options(cls, name, spec.options, chosen[replica_of(name)])
        grouped = role_of(name) in cast.groups or len(where[name]) > 1
        for index, home in enumerate(where[name]):
            actors.append(ActorPlan(f"{name}/{index}" if grouped else name, home, spec.cls or "", options))
    return Resolved(
        root=root,
        nodes=tuple(nodes.values()),
        actors=tuple(actors),
        wire=topology.wire,
        transport=topology.transport,
        listen=topology.listen,
        keys=topology.keys,
        seed=topology.seed,
        placement=topology.placement,
        lease=LeaseTerms(topology.heartbeat_seconds, topology.suspicion_seconds),
    )


def _entry(name: str) -> str:
    """Where an actor's entry stands."""
    prefix = replica_of(name)
    own = f"actors.{name.removeprefix(prefix)}"
    return f"models.{prefix}{own}".replace("/", ".") if prefix else own


def _with_defaults(
    topology: Topology, cast: Cast, prefix: str, parts: Collection[str]
) -> Iterator[tuple[str, ActorSpec]]:
    """The cast's actors, as the topology has them, then its own additions, by their full names.

    Where there are several models, each part has its own of them: the models', or those that they share.
    """
    due = [
        name
        for name in (*cast.classes, *cast.called_for(topology))
        if len(parts) == 1 or (name in cast.shared) == (not prefix)
    ]
    for name in dict.fromkeys((*due, *topology.actors)):
        place = _entry(prefix + name)
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
        if spec.node is not None and spec.nodes is not None:
            raise TopologyError(place, "both node and nodes are given; expected one of them")
        if spec.nodes == ():
            raise TopologyError(f"{place}.nodes", "found none; expected at least one")
        if spec.count is not None and not 1 <= spec.count <= 1024:
            raise TopologyError(f"{place}.count", f"found {spec.count}; expected 1 to 1024")
        members = max(spec.count or 1, len(spec.nodes or ()))
        if name in cast.single and members > 1:
            raise TopologyError(place, f"found {members} of it; expected exactly one")
        yield prefix + name, msgspec.structs.replace(spec, cls=cls)


def _resolve_likes(nodes: Mapping[str, NodeSpec]) -> dict[str, NodeSpec]:
    """Nodes with what they take over from others filled in."""

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


def _root_of(nodes: Mapping[str, NodeSpec]) -> str:
    """The one node that is this process."""
    here = [name for name, node in nodes.items() if not node.process and node.host is None]
    if len(here) > 1:
        raise TopologyError(
            "nodes",
            f"{', '.join(here)} would all be this process; expected one, and process: true on the others",
        )
    return here[0] if here else "front"


def written_nodes(nodes: Mapping[str, NodeSpec]) -> dict[str, NodePlan]:
    """What is planned for each written node."""
    return {
        name: NodePlan(name, process=node.process and node.host is None, joins=node.host is not None)
        for name, node in nodes.items()
    }


def _wanted(specs: Mapping[str, ActorSpec]) -> dict[str, tuple[str | None, ...]]:
    """For each actor, the node that each of its members asks for (None: no wish)."""
    wanted: dict[str, tuple[str | None, ...]] = {}
    for name, spec in specs.items():
        if spec.nodes is not None:
            if spec.count not in (None, len(spec.nodes)):
                raise TopologyError(
                    f"{_entry(name)}.count", f"found {spec.count}, but {len(spec.nodes)} nodes are named"
                )
            wanted[name] = spec.nodes
        else:
            wanted[name] = (spec.node,) * (spec.count or 1)
    return wanted


def _check_nodes(specs: Mapping[str, ActorSpec], nodes: Mapping[str, NodePlan]) -> None:
    for name, spec in specs.items():
        for node in (spec.node, *(spec.nodes or ())):
            if node is not None and node not in nodes:
                key = "node" if spec.node is not None else "nodes"
                raise TopologyError(f"{_entry(name)}.{key}", f"no node {node!r}; {expected(node, nodes)}")


def _check_root_actors(where: Mapping[str, tuple[str, ...]], root: str, cast: Cast) -> None:
    for name in sorted(cast.root_actors & where.keys()):
        for node in where[name]:
            if node != root:
                raise TopologyError(
                    f"actors.{name}.node", f"found {node!r}; expected {root!r}: it lives with its caller"
                )


def _check_roles(specs: Mapping[str, ActorSpec], classes: Mapping[str, type]) -> None:
    """An actor that stands where a role is expected must have it."""
    for name in specs:
        role: Role | None = ROLES.get(role_of(name))
        if role is not None and getattr(classes[name], "role", None) is not role:
            raise TopologyError(
                f"{_entry(name)}.class",
                f"{classes[name].__qualname__} does not take the role of {role.name}; set "
                f"`role = {role.name.upper()}` "
                "(from pageant.protocol.roles) and handle its messages",
            )


def _check_settings(settings: Iterable[str], prefix: str, classes: Mapping[str, Any], cast: Cast) -> None:
    known = {field for cls in classes.values() for field in cls.Options.__struct_fields__}
    known |= FORM | cast.extra_settings
    for name in settings:
        if name not in known:
            place = f"models.{prefix}{name}".replace("/", ".") if prefix else str(name)
            raise TopologyError(place, f"no such key; {expected(str(name), known)}")


def _check_needs(settings: Mapping[str, Any], prefix: str, classes: Mapping[str, Any], cast: Cast) -> None:
    for name, actor in cast.needs.items():
        cls = classes.get(prefix + actor)
        if settings.get(name) is not None and cls is not None and name not in cls.Options.__struct_fields__:
            raise TopologyError(
                f"{_entry(prefix + actor)}.class",
                f"{cls.__qualname__} has no option {name!r}; expected a class that has, or no {name}",
            )


def _options(cls: Any, name: str, given: Mapping[str, Any], settings: Mapping[str, Any]) -> bytes:
    """An actor's options as JSON: the settings that it knows, under what its own entry says."""
    fields = cls.Options.__struct_fields__
    for option in given:
        if option not in fields:
            raise TopologyError(
                f"{_entry(name)}.options.{option}", f"no such option; {expected(option, fields)}"
            )
    merged = {key: value for key, value in settings.items() if key in fields} | dict(given)
    try:
        encoded = msgspec.json.encode(msgspec.convert(merged, cls.Options))
        msgspec.json.decode(encoded, type=cls.Options)  # as its node will: JSON has no NaN, for one
        return encoded
    except (ValueError, TypeError, RecursionError) as error:  # ValidationError is a ValueError
        if isinstance(error.__cause__, TopologyError):  # an option that names something checked it itself
            raise error.__cause__ from None
        message, _, path = str(error).partition(" - at ")
        option = path.strip("`").removeprefix("$")
        key = option.lstrip(".").partition(".")[0].partition("[")[0]
        message += choices(cls.Options, key, merged)
        where = f"{_entry(name)}.options{option}"
        if key in settings and key not in given:
            where = f"models.{replica_of(name)}{key}".replace("/", ".") if replica_of(name) else key
        raise TopologyError(where, message) from None
