"""Addresses are names: `scheduler`, `executor/0`, `executor/*` (all of a group), `replica-1/scheduler`.

The part before an actor's own name is its prefix: one of several models (`small/`), one of several replicas of a
model (`replica-1/`), or both (`small/replica-1/`). A name is looked up under the sender's own prefix first, then
outwards. Roles that a replica owns are looked up under the sender's own prefix alone: a replica whose block manager
is down waits for its own, and finds no other's. A bare group name (`tokenizer` where there are `tokenizer/0` and
`tokenizer/1`) means any one of the group, in turn. A watcher may name the actors of all replicas: `*/scheduler`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from pageant.protocol.roles import OWNED_ROLES

ALL = "/*"
EVERY_REPLICA = "*/"
_REPLICA = re.compile(r"replica-(\d{1,6})/$", re.ASCII)
SUPERVISOR = "supervisor"
# The address of a node's agent is this and the node's name.
AGENT = "node/"


def replica_of(address: str) -> str:
    """Return the replica prefix of an actor's full name, with its slash, or ""."""
    name = group_of(address)
    return "" if name.startswith(AGENT) else name[: name.rfind("/") + 1]


def replica_prefix(model: str, index: int) -> str:
    """Return the prefix of a replica of the model that has this prefix."""
    return f"{model}replica-{index}/"


def model_of(prefix: str) -> str:
    """Return a prefix without its last part, if that names a replica of a model."""
    return _REPLICA.sub("", prefix)


def index_of(prefix: str) -> int | None:
    """Return the number of the replica that a prefix names; None where it names none."""
    found = _REPLICA.search(prefix)
    return None if found is None else int(found[1])


def group_of(address: str) -> str:
    """Return an actor's full name without its number in its group."""
    group, _, index = address.rpartition("/")
    return group if index.isdecimal() or index == "*" else address


def role_of(address: str) -> str:
    """Return an actor's own name, without its replica and its number."""
    return group_of(address).rpartition("/")[2]


def is_follower(address: str) -> bool:
    """Tell whether an actor's full name is that of a later member of its group: not the only one, nor the first."""
    index = address.rpartition("/")[2]
    return index.isdecimal() and index != "0"


def candidates(address: str, replica: str) -> tuple[str, ...]:
    """Return the full names that an address may mean for a sender with this prefix, best first."""
    found = [replica + address]
    is_bare = not (replica_of(address) or address.startswith(AGENT))
    if is_bare and role_of(address) in OWNED_ROLES:
        return tuple(found)
    while replica:
        replica = replica[: replica.rfind("/", 0, -1) + 1]
        found.append(replica + address)
    return tuple(found)


def members(address: str, names: Iterable[str]) -> tuple[str, ...]:
    """Return the names that belong to a group, in index order. `executor/*` and `executor` name the same group."""
    group = address.removesuffix(ALL) + "/"
    found = [name for name in names if name.startswith(group) and name[len(group) :].isdecimal()]
    return tuple(sorted(found, key=lambda name: int(name[len(group) :])))


def matches(pattern: str, name: str, replica: str) -> bool:
    """Tell whether a watched address covers an actor's full name."""
    model, every, own = pattern.partition(EVERY_REPLICA)
    if every and own:
        prefix = replica_of(name)
        return index_of(prefix) is not None and matches(
            model + own, model_of(prefix) + name[len(prefix) :], replica
        )
    return any(
        name == candidate or bool(members(candidate, (name,))) for candidate in candidates(pattern, replica)
    )
