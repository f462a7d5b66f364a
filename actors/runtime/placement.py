"""Default placement of actors: all here, each in its own process, or by a fixed rule.

The rule of `auto` comes from a measurement (`scripts/bench/placement.py`, docs/benchmarks/placement.json). With
the executor in a process of its own the engine is a third faster than in one process. Beside a user's thread
that computes in Python it keeps more than a quarter of its speed, while a single process almost stops. `each`
is faster still where there are cores for it, at the price of an interpreter's memory per actor. A grammar lives
with its executor: the masks of each step have a bit for each row and token of the vocabulary, and would cost
more to carry to another process than to make.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from pageant.actors.runtime.address import replica_of, role_of
from pageant.actors.runtime.plans import NodePlan

Placement = Literal["one", "each", "auto"]

# Actors that `auto` gives a process of their own; all others share the root's.
AUTO_PROCESSES: frozenset[str] = frozenset({"executor"})
# Actors that `auto` places with the first member of another.
AUTO_BESIDE: Mapping[str, str] = {"grammar": "executor"}


def place(
    placement: Placement,
    root: str,
    nodes: Mapping[str, NodePlan],
    wanted: Mapping[str, Sequence[str | None]],
    root_actors: frozenset[str],
) -> tuple[dict[str, NodePlan], dict[str, tuple[str, ...]]]:
    """Return all nodes, and for each actor the node of each of its members.

    Args:
        wanted: for each actor, the node that each member asks for; None leaves it to `placement`.
        root_actors: actors that must live with the caller.
    """
    plans = dict(nodes)
    plans.setdefault(root, NodePlan(root))
    where: dict[str, tuple[str, ...]] = {}
    for actor, wishes in wanted.items():
        places = []
        for index, wish in enumerate(wishes):
            node = wish
            if node is None:
                node = root
                apart = placement == "each" or (placement == "auto" and role_of(actor) in AUTO_PROCESSES)
                if apart and actor not in root_actors:
                    node = f"{actor}-{index}" if len(wishes) > 1 else actor
                    plans.setdefault(node, NodePlan(node, process=True))
            places.append(node)
        where[actor] = tuple(places)
    if placement == "auto":
        for actor, wishes in wanted.items():
            beside = replica_of(actor) + AUTO_BESIDE.get(role_of(actor), "")
            if beside in where and where[beside][0] and not any(wishes):
                where[actor] = (where[beside][0],) * len(wishes)
    # The root comes first: every other node connects to it.
    ordered = {root: plans.pop(root), **plans}
    return ordered, where
