"""Addresses are names: `scheduler`, `executor/0`, `executor/*` (all of a group), `replica-1/scheduler`.

The part before an actor's own name is its replica: one of several engines of a topology, or one of several
models. A name is looked up in the sender's own replica first. A bare group name (`tokenizer` where there are
`tokenizer/0` and `tokenizer/1`) means any one of the group, in turn.
"""

from __future__ import annotations

from collections.abc import Iterable

ALL = "/*"
SUPERVISOR = "supervisor"
# The address of a node's agent is this and the node's name.
AGENT = "node/"


def replica_of(address: str) -> str:
    """Return the replica prefix of an actor's full name, with its slash, or ""."""
    name = group_of(address)
    return "" if name.startswith(AGENT) else name[: name.rfind("/") + 1]


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
    """Return the full names that an address may mean, best first."""
    return (replica + address, address) if replica else (address,)


def members(address: str, names: Iterable[str]) -> tuple[str, ...]:
    """Return the names that belong to a group, in index order. `executor/*` and `executor` name the same group."""
    group = address.removesuffix(ALL) + "/"
    found = [name for name in names if name.startswith(group) and name[len(group) :].isdecimal()]
    return tuple(sorted(found, key=lambda name: int(name[len(group) :])))


def matches(pattern: str, name: str, replica: str) -> bool:
    """Tell whether a watched address covers an actor's full name."""
    return any(
        name == candidate or bool(members(candidate, (name,))) for candidate in candidates(pattern, replica)
    )
