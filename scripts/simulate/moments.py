"""What an engine is at when a fault strikes, and whom it strikes: the rows of the design's table of deaths."""

from __future__ import annotations

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

ROWS = (
    *("executor", "blocks", "scheduler", "detokenizer", "grammar", "tokenizer", "drafter", "frontend"),
    *("host", "hang"),
)
"""Of the table; `hang` is a step that never returns."""


def moments_of(requests: Iterable[Any], *, all_came: bool) -> dict[str, bool]:
    """Whether any of the scheduler's requests is in prefill, in decode, or preempted; and whether these are the
    last ones."""
    requests = list(requests)
    return {
        "prefill": any(one.row is not None and not one.output for one in requests),
        "decode": any(one.row is not None and one.output for one in requests),
        "preempted": any(one.row is None and one.num_preemptions for one in requests),
        "draining": all_came and bool(requests),
    }


def talking(actors: Iterable[str]) -> list[tuple[str, str]]:
    """The pairs of actors that talk with each other."""
    actors = list(actors)
    return [(one, other) for one in actors for other in actors if (_role(one), _role(other)) in TALKS]


def victims(topology: Resolved, fault: Fault) -> list[str]:
    """The rows that a fault is a case of; or its kind."""
    if fault.kind == "crash":
        return [_role(fault.target)]
    if fault.kind not in ("kill", "host"):
        return [fault.kind]
    targets = fault.target.split(",")
    roles = [_role(plan.name) for plan in topology.actors if plan.node in targets]
    return [*dict.fromkeys(roles), *(["host"] if fault.kind == "host" else [])]


def _role(actor: str) -> str:
    return actor.partition("/")[0]
