"""A topology as its user writes it, in YAML or as arguments.

    model: ./models/demo
    max_num_seqs: 256               # a setting: reaches every actor whose Options have a field of that name
    nodes:
      front: {}                     # the root: the process that reads this file
      gpu-0: {process: true}
    actors:
      scheduler: {node: front, class: my_lab.policies:MyScheduler, options: {policy: fair}}
      tokenizer: {count: 2}
    placement: auto

An actor is placed by its node's name, by a host, or by a device that is free (`device: cuda`).

Several models live side by side, each with actors of its own under its name (`small/scheduler`); what they share,
and the nodes, stand at the top, and so do settings that reach all of them:

    models:
      small: {model: ./models/small, max_num_seqs: 64}
      large: {model: ./models/large, actors: {executor: {node: gpu-0}}}
    actors:
      http: {options: {port: 8000}}

With `replicas: 2`, a model has each actor that it computes with twice, as `replica-0/scheduler` and
`replica-1/scheduler`; see `replicating`.

`parse` checks the form; `resolving.resolve` fills in defaults and checks the rest. Every error names the place and, for
a name, the nearest valid one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from pageant.actors.runtime.address import index_of
from pageant.actors.runtime.kinds import ReplicaKind, check_kinds
from pageant.actors.runtime.lease import LeaseTerms
from pageant.actors.runtime.placement import Placement
from pageant.actors.runtime.topology_specs import ActorSpec, LauncherSpec, NodeSpec
from pageant.actors.runtime.transport.addresses import objection_to
from pageant.actors.runtime.yaml import load_yaml
from pageant.protocol.checks import expected
from pageant.protocol.errors import TopologyError

WireMode = Literal["auto", "always"]
Transport = Literal["ipc", "tcp"]


class Topology(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A topology as written."""

    model: str | None = None
    models: dict[str, Topology] = msgspec.field(default_factory=dict)
    """Topologies that consist of a model and its actors."""
    nodes: dict[str, NodeSpec] = msgspec.field(default_factory=dict)
    actors: dict[str, ActorSpec] = msgspec.field(default_factory=dict)
    placement: Placement = "auto"
    wire: WireMode = "auto"
    transport: Transport = "ipc"
    listen: str | None = None
    keys: str | None = None
    launcher: str | LauncherSpec | None = None
    replicas: int = 1
    kinds: dict[str, ReplicaKind] = msgspec.field(default_factory=dict)
    """Kinds of replicas, whose counts add up to `replicas`; none where all are alike."""
    seed: int = 0
    heartbeat_seconds: float = LeaseTerms.heartbeat
    suspicion_seconds: float = LeaseTerms.suspicion
    settings: dict[str, Any] = msgspec.field(default_factory=dict)
    """The keys at the top that are not part of the form."""


_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}", re.ASCII)
# Addresses of the runtime's own actors.
RESERVED = ("node", "supervisor")
REPLICA_MARK = "{replica}"
"""Stands for a replica's number, in names of nodes and in entries of actors that replicas own."""
REPLICAS_MAX = 64
S = TypeVar("S", bound=msgspec.Struct)

FORM = set(Topology.__struct_fields__) - {"settings", "kinds"}
OF_MODELS = {"model", "actors", "replicas"}
"""Keys of the form that each of several models may have."""


def read(path: Path) -> Topology:
    """Return the topology in a YAML file, with its includes merged in.

    Raises:
        TopologyError: there is no file, it is no YAML, or it has not the form of a topology.
    """
    return parse(load_yaml(path))


def parse(data: Mapping[str, Any]) -> Topology:
    """Return a topology from plain data.

    Raises:
        TopologyError: names the place (such as `actors.scheduler`), what was found and what is expected.
    """
    if not isinstance(data, Mapping):
        raise TopologyError("", f"found {_shown(data)}; expected a mapping of keys")
    form = {key: value for key, value in data.items() if key in FORM}
    settings = {key: value for key, value in data.items() if key not in FORM}
    for section, spec in (("nodes", NodeSpec), ("actors", ActorSpec)):
        form[section] = _section(form.get(section), section, spec)
    written = form.get("replicas")
    if isinstance(written, Mapping):
        kinds = check_kinds(_kinds(written))
        form |= {"kinds": kinds, "replicas": sum(kind.count for kind in kinds.values())}
    models = _models(form.pop("models", None), settings, written)
    topology = _convert({**form, "settings": settings}, Topology, "")
    topology = msgspec.structs.replace(topology, models=models)
    if models and topology.model is not None:
        raise TopologyError("model", f"found {topology.model!r}; expected none beside models")
    if topology.listen is not None:
        objection = objection_to(topology.listen, has_keys=topology.keys is not None)
        if objection is not None:
            raise TopologyError("listen", objection)
    if not 0 <= topology.seed < 2**63:
        raise TopologyError("seed", f"found {topology.seed}; expected 0 to 2**63 - 1")
    if not 0 < topology.heartbeat_seconds * 2 <= topology.suspicion_seconds:
        raise TopologyError(
            "suspicion_seconds",
            f"found {topology.suspicion_seconds:g} with heartbeat_seconds of {topology.heartbeat_seconds:g}; "
            "expected at least two heartbeats, which take longer than no time",
        )
    if not 1 <= topology.replicas <= REPLICAS_MAX:
        raise TopologyError("replicas", f"found {topology.replicas}; expected 1 to {REPLICAS_MAX}")
    return topology


def _models(section: Any, settings: Mapping[str, Any], replicas: Any) -> dict[str, Topology]:
    """Return the topology of each model, with the settings and the number of replicas that are for all of them."""
    if section is None:
        return {}
    if not isinstance(section, Mapping) or not section:
        raise TopologyError("models", f"found {_shown(section)}; expected a mapping of names to their keys")
    models = {}
    for name, keys in section.items():
        place = f"models.{name}"
        _check_name(name, place)
        if index_of(f"{name}/") is not None:
            raise TopologyError(place, f"found the name {name!r}; expected another: replicas are called so")
        if not isinstance(keys, Mapping):
            raise TopologyError(
                place, f"found {_shown(keys)}; expected a mapping, such as {{model: ./folder}}"
            )
        for key in keys:
            if key in FORM - OF_MODELS:
                raise TopologyError(
                    f"{place}.{key}", "no key of a model; it stands at the top, for all of them"
                )
        try:
            shared = {} if replicas is None else {"replicas": replicas}
            models[name] = parse({**shared, **settings, **keys})
        except TopologyError as error:
            raise error.within(place) from None
    return models


def _section(section: Any, name: str, spec: type[S]) -> dict[str, S]:
    if section is None:
        return {}
    if not isinstance(section, Mapping):
        raise TopologyError(name, f"found {_shown(section)}; expected a mapping of names to their keys")
    known = [field.encode_name for field in msgspec.structs.fields(spec)]
    entries = {}
    for entry, keys in section.items():
        place = f"{name}.{entry}"
        _check_name(
            entry.replace(REPLICA_MARK, "0") if name == "nodes" and isinstance(entry, str) else entry, place
        )
        if keys is not None and not isinstance(keys, Mapping):
            raise TopologyError(place, f"found {_shown(keys)}; expected a mapping, such as {{}}")
        for key in keys or ():
            if key not in known:
                raise TopologyError(f"{place}.{key}", f"no such key; {expected(str(key), known)}")
        entries[entry] = _convert(keys or {}, spec, place)
    return entries


def _kinds(section: Mapping[str, Any]) -> dict[str, ReplicaKind]:
    """Return the kinds of replicas as they are written."""
    kinds: dict[str, ReplicaKind] = {}
    for name, keys in section.items():
        place = f"replicas.{name}"
        _check_name(name, place)
        keys = {"count": keys} if isinstance(keys, int) else keys or {}
        if not isinstance(keys, Mapping):
            raise TopologyError(place, f"found {_shown(keys)}; expected a mapping, such as {{count: 2}}")
        for key in keys:
            if key not in ReplicaKind.__struct_fields__:
                raise TopologyError(
                    f"{place}.{key}", f"no such key; {expected(str(key), ReplicaKind.__struct_fields__)}"
                )
        try:
            actors = _section(keys.get("actors"), "actors", ActorSpec)
        except TopologyError as error:
            raise error.within(place) from None
        kinds[name] = _convert({**keys, "actors": actors}, ReplicaKind, place)
    return kinds


def _check_name(name: Any, place: str) -> None:
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name in RESERVED:
        raise TopologyError(
            place,
            f"found the name {name!r}; expected up to 64 letters, digits, '-' and '_', a letter first, and "
            f"none of {', '.join(RESERVED)}",
        )


def _convert(data: Any, spec: type[S], place: str) -> S:
    """Convert plain data to a Struct. msgspec's `... - at `$.process`` becomes the place and the message."""
    try:
        return msgspec.convert(data, spec)
    except (msgspec.ValidationError, RecursionError) as error:
        message, _, path = str(error).partition(" - at ")
        where = path.strip("`").removeprefix("$")
        message += choices(spec, where.lstrip("."), data)
        raise TopologyError((place + where).removeprefix("."), message) from None


def choices(spec: type[msgspec.Struct], key: str, data: Any) -> str:
    """Return the value found at a key, and the values to choose from, for the end of an error message."""
    found = data.get(key) if isinstance(data, Mapping) else None
    if found is None or not isinstance(found, str | int | float):
        return ""
    hint = get_type_hints(spec).get(key)
    options = [
        option for part in (hint, *get_args(hint)) if get_origin(part) is Literal for option in get_args(part)
    ]
    return f"; {expected(str(found), options)}" if options else f"; found {_shown(found)}"


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}..."
