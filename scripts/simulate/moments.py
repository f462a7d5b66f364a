"""Moments of faults: what an engine is at when one strikes, and whom it strikes, by the design's table of deaths."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pageant.actors.blocks.stored import Arrival, Transfer
from pageant.actors.runtime.address import model_of, replica_of, role_of
from pageant.actors.runtime.simulation import Fault

MOMENTS = ("prefill", "decode", "preempted", "draining")
# A fault waits for its moment. The rare one is asked for most.
FAULT_MOMENTS = ("prefill", "preempted", "preempted", "preempted", "preempted")
CHANGING = "changing"
"""The moment at which a replica is added, drained or removed."""
CHANGING_MOMENTS = ("prefill", "preempted", "preempted", CHANGING, CHANGING)
HANDING_OVER, SAVING, RESTORING = "handing over", "saving", "restoring"
"""The moments at which a replica computes a prompt that goes on elsewhere, and at which blocks are copied to the store,
or from it."""
STORE_MOMENTS = (HANDING_OVER, SAVING, RESTORING)
FETCHING = "fetching"
"""The moment at which a store fetches blocks from another's."""
FETCH_MOMENTS = (*STORE_MOMENTS, FETCHING, FETCHING)

TALKS = (
    *(("frontend", "tokenizer"), ("frontend", "grammar"), ("frontend", "scheduler")),
    *(("scheduler", "blocks"), ("scheduler", "executor"), ("scheduler", "drafter"), ("blocks", "executor")),
    *(("executor", "grammar"), ("scheduler", "detokenizer"), ("detokenizer", "frontend")),
    *(
        ("blocks", "store"),
        ("store", "store"),
        ("frontend", "router"),
        ("scheduler", "router"),
        ("blocks", "router"),
    ),
    ("lifecycle", "frontend"),
)
"""Who has something to say to whom."""

STREAMS = ("scheduler", "detokenizer"), ("detokenizer", "frontend")
STREAM_SHARE = 12  # of what goes wrong between two actors, where the one streams to the other

ROWS = (
    *("executor", "blocks", "scheduler", "detokenizer", "grammar", "tokenizer", "drafter", "frontend"),
    *("host", "hang"),
)
"""Of the table; `hang` is a step that never returns."""


@dataclass(frozen=True)
class Scene:
    """Engine that is looked at.

    Attributes:
        requests, transfers: return what its schedulers know, and the copies of blocks to and from stores that are under
            way.
        all_came: these are the last requests.
        is_changing, is_fetching: tell whether a replica comes or goes, and whether a store fetches blocks from another.
    """

    requests: Callable[[], Iterable[Any]]
    transfers: Callable[[], Iterable[Transfer]]
    all_came: Callable[[], bool]
    is_changing: Callable[[], bool]
    is_fetching: Callable[[], bool]


WHEN: dict[str, Callable[[Scene], bool]] = {
    "prefill": lambda scene: any(one.row is not None and not one.output for one in scene.requests()),
    "decode": lambda scene: any(one.row is not None and one.output for one in scene.requests()),
    "preempted": lambda scene: any(one.row is None and one.num_preemptions for one in scene.requests()),
    "draining": lambda scene: scene.all_came() and any(True for _ in scene.requests()),
    CHANGING: lambda scene: scene.is_changing(),
    HANDING_OVER: lambda scene: any(one.hands_over for one in scene.requests()),
    SAVING: lambda scene: any(not isinstance(one, Arrival) for one in scene.transfers()),
    RESTORING: lambda scene: any(isinstance(one, Arrival) for one in scene.transfers()),
    FETCHING: lambda scene: scene.is_fetching(),
}
"""Tells of each moment whether it is there."""


def talking(actors: Iterable[str]) -> list[tuple[str, str]]:
    """The pairs of actors that talk with each other, each as often as something is to go wrong between them."""
    pairs = [
        pair
        for pair in itertools.permutations(actors, 2)
        if _roles(pair) in TALKS and _are_of_one_engine(*pair)
    ]
    return [pair for pair in pairs for _ in range(STREAM_SHARE if _roles(pair) in STREAMS else 1)]


def victims(homes: Mapping[str, str], fault: Fault) -> list[str]:
    """Return the rows that a fault is a case of; or its kind.

    Args:
        homes: the node of each actor.
    """
    if fault.kind == "crash":
        return [role_of(fault.target)]
    if fault.kind not in ("kill", "host"):
        return [fault.kind]
    targets = fault.target.split(",")
    roles = [role_of(name) for name, node in homes.items() if node in targets]
    return [*dict.fromkeys(roles), *(["host"] if fault.kind == "host" else [])]


def _roles(pair: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(map(role_of, pair))


def _are_of_one_engine(one: str, other: str) -> bool:
    """Tell whether two actors are not of different replicas."""
    prefixes = replica_of(one), replica_of(other)
    return prefixes[0] == prefixes[1] or any(prefix == model_of(prefix) for prefix in prefixes)
