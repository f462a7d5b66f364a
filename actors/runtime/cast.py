"""Default actors of a topology, as whoever embeds the runtime declares them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from pageant.actors.runtime.topology import Topology


@dataclass(frozen=True)
class Cast:
    """The default actors of a topology."""

    classes: Mapping[str, str]
    """The class of each actor, by name."""
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
    """Return the optional actors that a topology calls for."""
    needs: Mapping[str, str] = field(default_factory=dict)
    """Settings that are useless unless this actor knows them."""
