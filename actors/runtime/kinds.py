"""Kinds of replicas: such as some that compute prompts, and others that go on with outputs.

    replicas:
      prefill: {count: 1}
      decode:  {count: 2, actors: {executor: {options: {threads: 2}}}}

Replicas of all kinds are numbered together, in the order in which kinds are written: here replica 0 is of kind
`prefill`, 1 and 2 of kind `decode`. Replicas that are added later are of the last kind, but for those whose number
another kind has.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, get_args

import msgspec

from pageant.actors.runtime.topology_specs import ActorSpec
from pageant.protocol.checks import expected
from pageant.protocol.errors import TopologyError
from pageant.protocol.replicas import ReplicaRole
from pageant.protocol.roles import OWNED_ROLES

ROLES: tuple[str, ...] = get_args(ReplicaRole)
ALIKE = (
    *("model", "block_size", "dtype", "kv_cache_dtype"),
    *("quantization", "head_quantization", "weight_version"),
)
"""Options of executors that all kinds have in common: blocks of other models or sizes mean nothing to them."""


class ReplicaKind(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A kind of replicas as written."""

    count: int = 1
    role: str | None = None
    """What its replicas are for; None is the kind's name, which then is one of `ROLES`."""
    actors: dict[str, ActorSpec] = msgspec.field(default_factory=dict)
    """Entries of actors that replicas own, which are laid over those of the topology."""


def check_kinds(kinds: Mapping[str, ReplicaKind]) -> dict[str, ReplicaKind]:
    """Return kinds with their roles filled in.

    Raises:
        TopologyError: a kind is none, or no replica goes on with outputs.
    """
    if not kinds:
        raise TopologyError(
            "replicas", "found no kinds; expected a number, or kinds such as prefill and decode"
        )
    found: dict[str, ReplicaKind] = {}
    for name, kind in kinds.items():
        place = f"replicas.{name}"
        role = kind.role or name
        if role not in ROLES:
            key = "role" if kind.role is not None else ""
            raise TopologyError(
                f"{place}.{key}".rstrip("."), f"found the role {role!r}; {expected(role, ROLES)}"
            )
        if kind.count < 1:
            raise TopologyError(f"{place}.count", f"found {kind.count}; expected at least 1")
        for actor, spec in kind.actors.items():
            if actor not in OWNED_ROLES:
                raise TopologyError(
                    f"{place}.actors.{actor}",
                    f"no actor that replicas own; {expected(actor, sorted(OWNED_ROLES))}",
                )
            if spec.count is not None and spec.count < 1:
                raise TopologyError(
                    f"{place}.actors.{actor}.count",
                    f"found {spec.count}; expected at least 1: each replica has its own {actor}",
                )
        found[name] = msgspec.structs.replace(kind, role=role)
    if all(kind.role == "prefill" for kind in found.values()):
        raise TopologyError(
            "replicas",
            f"found only kinds of role prefill ({', '.join(found)}); expected one of role decode beside them",
        )
    return found


def kind_at(kinds: Mapping[str, ReplicaKind], number: int) -> ReplicaKind | None:
    """Return the kind of the replica of a number; None where there are no kinds."""
    kind = None
    for kind in kinds.values():
        number -= kind.count
        if number < 0:
            break
    return kind


def of_kind(spec: ActorSpec, role: str, kind: ReplicaKind | None) -> ActorSpec:
    """Return the entry of an actor for replicas of a kind."""
    own = None if kind is None else kind.actors.get(role)
    if own is not None:
        written = {
            name: value for name in own.__struct_fields__ if (value := getattr(own, name)) not in (None, {})
        }
        if {"node", "nodes", "host", "device", "count"} & written.keys():
            spec = msgspec.structs.replace(spec, node=None, nodes=None, host=None, device=None, count=None)
        spec = msgspec.structs.replace(spec, **{**written, "options": {**spec.options, **own.options}})
    if kind is not None and role == "scheduler" and kind.role != "both":
        spec = msgspec.structs.replace(spec, options={**spec.options, "replica_role": kind.role})
    return spec


def check_alike(kinds: Mapping[str, ReplicaKind], executor: ActorSpec, settings: Mapping[str, Any]) -> None:
    """Refuse kinds whose KV blocks differ.

    Args:
        executor: the entry of the model's executor.
        settings: of the model.
    """
    for option in ALIKE if kinds else ():
        usual = executor.options.get(option, settings.get(option))
        found = {
            name: kind.actors["executor"].options.get(option, usual) if "executor" in kind.actors else usual
            for name, kind in kinds.items()
        }
        first, *others = found.items()
        for name, value in others:
            if value != first[1]:
                here, there = (_shown(one) for one in (value, first[1]))
                raise TopologyError(
                    f"replicas.{name}.actors.executor.options.{option}",
                    f"found {here}; expected {there}, which {first[0]} has: kinds of replicas exchange blocks",
                )


def _shown(value: Any) -> str:
    """Return an option's value as messages show it; None is one that was not given."""
    return "the default" if value is None else repr(value)


def has_prefill(kinds: Iterable[ReplicaKind]) -> bool:
    """Tell whether prompts are computed apart."""
    return any(kind.role == "prefill" for kind in kinds)
