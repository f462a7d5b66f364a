"""Moments of faults: what an engine is at when one strikes, and whom it strikes, by the design's table of deaths."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

from pageant.actors.runtime.resolving import Resolved
from pageant.actors.runtime.simulation import Fault

MOMENTS = ("prefill", "decode", "preempted", "draining")
# A fault waits for its moment. The rare one is asked for most.
FAULT_MOMENTS = ("prefill", "preempted", "preempted", "preempted", "preempted")

TALKS = (
    *(("frontend", "tokenizer"), ("frontend", "grammar"), ("frontend", "scheduler")),
    *(("scheduler", "blocks"), ("scheduler", "executor"), ("scheduler", "drafter"), ("blocks", "executor")),
    *(("executor", "grammar"), ("scheduler", "detokenizer"), ("detokenizer", "frontend")),
)
"""Who has something to say to whom."""

STREAMS = ("scheduler", "detokenizer"), ("detokenizer", "frontend")
STREAM_SHARE = 12  # of what goes wrong between two actors, where the one streams to the other

ROWS = (
    *("executor", "blocks", "scheduler", "detokenizer", "grammar", "tokenizer", "drafter", "frontend"),
    *("host", "hang"),
)
"""Of the table; `hang` is a step that never returns."""


def moments_of(requests: Iterable[Any], *, all_came: bool) -> dict[str, bool]:
    """Return whether any of the scheduler's requests is in prefill, in decode, or preempted; and whether these are the
    last ones."""
    requests = list(requests)
    return {
        "prefill": any(one.row is not None and not one.output for one in requests),
        "decode": any(one.row is not None and one.output for one in requests),
        "preempted": any(one.row is None and one.num_preemptions for one in requests),
        "draining": all_came and bool(requests),
    }


def talking(actors: Iterable[str]) -> list[tuple[str, str]]:
    """The pairs of actors that talk with each other, each as often as something is to go wrong between them."""
    pairs = [pair for pair in itertools.permutations(actors, 2) if _roles(pair) in TALKS]
    return [pair for pair in pairs for _ in range(STREAM_SHARE if _roles(pair) in STREAMS else 1)]


def victims(topology: Resolved, fault: Fault) -> list[str]:
    """The rows that a fault is a case of; or its kind."""
    if fault.kind == "crash":
        return [_role(fault.target)]
    if fault.kind not in ("kill", "host"):
        return [fault.kind]
    targets = fault.target.split(",")
    roles = [_role(plan.name) for plan in topology.actors if plan.node in targets]
    return [*dict.fromkeys(roles), *(["host"] if fault.kind == "host" else [])]


def _roles(pair: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(map(_role, pair))


def _role(actor: str) -> str:
    return actor.partition("/")[0]
