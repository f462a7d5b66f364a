"""Where actors live when nobody said: all here, each in its own process, or by a fixed rule.

The rule of `auto` comes from a measurement (`scripts/bench/placement.py`, docs/benchmarks/placement.json): with the
executor in a process of its own the engine is a third faster than in one process, and keeps more than a quarter of its
speed beside a user's thread that computes in Python, where a single process is brought almost to a standstill. `each`
is faster still where there are cores for it, at the price of as many processes as actors, each with an interpreter's
memory. What guides an executor's draws lives where it does, since the masks of each step, a bit for each token of the
vocabulary and row, would cost more to carry to another process than they do to make.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from pageant.actors.runtime.address import replica_of, role_of
from pageant.actors.runtime.plans import NodePlan

Placement = Literal["one", "each", "auto"]

# Actors that `auto` gives a process of their own; all others share the root's.
AUTO_PROCESSES: frozenset[str] = frozenset({"executor"})
# And those that live with another's first member.
AUTO_BESIDE: Mapping[str, str] = {"grammar": "executor"}


def place(
    placement: Placement,
    root: str,
    nodes: Mapping[str, NodePlan],
    wanted: Mapping[str, Sequence[str | None]],
    root_actors: frozenset[str],
) -> tuple[dict[str, NodePlan], dict[str, tuple[str, ...]]]:
    """All nodes, and for each actor the node of each of its members.

    Args:
        wanted: for each actor, the node that each member asks for; None leaves it to `placement`.
        root_actors: those that must live with the caller.
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
