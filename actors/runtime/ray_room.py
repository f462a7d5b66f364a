"""Room on a Ray cluster: what nodes ask for, and why a cluster has none of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Strategy = Literal["STRICT_PACK", "PACK", "SPREAD", "STRICT_SPREAD"]
"""How Ray spreads the bundles of a placement group over hosts."""


class NoRoom(OSError):
    """The Ray cluster has no room for a node within the deadline."""


@dataclass
class Room:
    """A placement group and the nodes in it, in the order of its bundles."""

    group: Any
    nodes: tuple[str, ...]
    bundles: list[dict[str, float]] = field(default_factory=list)


def asked(bundles: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the sum of bundles."""
    names = dict.fromkeys(name for bundle in bundles for name in bundle)
    return {name: sum(bundle.get(name, 0.0) for bundle in bundles) for name in names}


def amounts(resources: Mapping[str, float]) -> str:
    return ", ".join(f"{amount:g} {name}" for name, amount in sorted(resources.items()) if amount)


def shown(nodes: Sequence[str], bundles: Sequence[Mapping[str, float]], strategy: str) -> str:
    where = " on one host" if len(nodes) > 1 and strategy == "STRICT_PACK" else ""
    return f"{' and '.join(nodes)} asked Ray for {amounts(asked(bundles))}{where}"


def why_never(
    hosts: Sequence[Mapping[str, Any]], bundles: Sequence[Mapping[str, float]], strategy: str
) -> str | None:
    """Return why a cluster of these hosts never has room for bundles, even with nothing else on it."""
    sizes = [host["Resources"] for host in hosts if host["Alive"]]
    together = [asked(bundles)] if strategy == "STRICT_PACK" else bundles
    for one in together:
        if not any(all(size.get(name, 0.0) >= amount for name, amount in one.items()) for size in sizes):
            largest = {name: max((size.get(name, 0.0) for size in sizes), default=0.0) for name in one}
            found = amounts(largest) or "none of that"
            return f"the Ray cluster's hosts have {found} at most"
    total = asked(bundles)
    whole = {name: sum(size.get(name, 0.0) for size in sizes) for name in total}
    if any(whole[name] < amount for name, amount in total.items()):
        return f"the whole Ray cluster has {amounts(whole) or 'none of that'}"
    return None
