"""Names of a topology's actors: each is one that others send messages to."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from pageant.actors.runtime.address import role_of
from pageant.actors.runtime.node_plans import entry_of
from pageant.actors.runtime.topology_specs import ActorSpec
from pageant.protocol.errors import TopologyError
from pageant.protocol.roles import Role


def check_names(specs: Mapping[str, ActorSpec], classes: Mapping[str, type], known: Collection[str]) -> None:
    """Refuse an added actor that nothing would talk to: its name is one of the cast, misspelt.

    A class with a role is meant to replace the cast's actor of that role. A class without one may have any name
    that is not close to one of the cast's.

    Args:
        known: names of the cast.
    """
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
