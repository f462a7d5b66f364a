"""Entries of a topology: what each actor is asked to be, its class, and how many members its group has."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from pageant.actors.runtime.actor_names import check_names
from pageant.actors.runtime.actor_options import encode_options
from pageant.actors.runtime.address import replica_of, role_of
from pageant.actors.runtime.cast import Cast
from pageant.actors.runtime.classes import load_actor_class
from pageant.actors.runtime.node_plans import entry_of
from pageant.actors.runtime.replicating import Indexes, is_of_model, replicated
from pageant.actors.runtime.stores import STORE
from pageant.actors.runtime.topology import FORM, Topology
from pageant.actors.runtime.topology_specs import ActorSpec
from pageant.protocol.checks import expected
from pageant.protocol.errors import TopologyError
from pageant.protocol.roles import ROLES, Role

Settings = Mapping[str, Mapping[str, Any]]
"""Settings by the prefix of a model or a replica; "" is the topology's own."""


@dataclass(frozen=True)
class Entries:
    """Every actor of a topology, by its full name, before it has a place."""

    specs: Mapping[str, ActorSpec]
    """What the topology or the cast asks for, with defaults filled in."""
    classes: Mapping[str, Any]
    sizes: Mapping[str, int]
    """The number of members that live as one; 1 for an actor without a group."""
    settings: Settings

    def options(self, name: str, given: Mapping[str, Any]) -> bytes:
        """Return an actor's options as JSON, its own ones being `given`. Raises TopologyError."""
        return encode_options(self.classes[name], name, given, self.settings[replica_of(name)])


def entries_of(
    topology: Topology, parts: Mapping[str, Topology], cast: Cast, indexes: Indexes, settings: Settings
) -> Entries:
    """Return the entries of all models of a topology and of their replicas, with classes loaded.

    Args:
        parts: the topology itself and each of its models, by prefix.
        indexes: the numbers of each model's replicas, by its prefix.

    Raises:
        TopologyError: an entry, a setting or a class is unknown or does not fit the others.
    """
    specs = {
        name: spec
        for prefix, part in parts.items()
        for name, spec in replicated(
            _with_defaults(part, cast, prefix, parts), prefix, indexes[prefix], settings[prefix], part.kinds
        )
    }
    classes = {
        name: load_actor_class(spec.cls or "", f"{entry_of(name)}.class") for name, spec in specs.items()
    }
    _check_roles(specs, classes)
    check_names(specs, classes, (*cast.classes, *cast.optional))
    for prefix, part in parts.items():
        own = part.settings.keys() - (topology.settings.keys() if prefix else ())
        known = {name: cls for name, cls in classes.items() if not prefix or name.startswith(prefix)}
        _check_settings(sorted(own), prefix, known, cast)
        _check_needs(settings[prefix], prefix, classes, cast)
    sizes = {name: _size(classes[name], name, spec, settings, cast) for name, spec in specs.items()}
    return Entries(
        {name: _with_members(name, spec, *sizes[name]) for name, spec in specs.items()},
        classes,
        {name: size for name, (size, _) in sizes.items()},
        settings,
    )


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
        placed = [
            key for key in ("node", "nodes", "host", "device", "count") if getattr(spec, key) is not None
        ]
        if spec.each is not None and (placed or name != STORE):
            found = f"with {placed[0]}" if placed else f"for {name}"
            raise TopologyError(
                f"{place}.each", f"found it {found}; expected it for {STORE} alone, by itself"
            )
        if spec.count is not None and not 1 <= spec.count <= 1024:
            raise TopologyError(f"{place}.count", f"found {spec.count}; expected 1 to 1024")
        yield prefix + name, msgspec.structs.replace(spec, cls=cls)


def _size(cls: Any, name: str, spec: ActorSpec, settings: Settings, cast: Cast) -> tuple[int, str]:
    """Return how many actors an entry's options make of it, as a group that lives as one, and which options.

    Raises:
        TopologyError: there is exactly one of such an actor otherwise, and the entry says another number.
    """
    options = msgspec.json.decode(
        encode_options(cls, name, spec.options, settings[replica_of(name)]), type=cls.Options
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
