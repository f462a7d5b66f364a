"""Time travel through recordings: the state at any step, and the first step at which two runs decide differently."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from pageant.protocol.errors import BadRequest
from pageant.scripts.replay.load import Load
from pageant.scripts.replay.steps import BlockUse, Board, Decision, follow
from pageant.scripts.report import table

SHOWN_MAX = 20
"""Rows of a table that are shown; the JSON has all."""


@dataclass(frozen=True)
class WaitingRequest:
    """A request that has no row."""

    request: int
    seconds: float
    """Time since it was submitted."""
    prompt_tokens: int
    priority: int


@dataclass(frozen=True)
class StepState:
    """State of a scheduler at one step: its plan, the queue and the use of blocks, once the plan is made."""

    decision: Decision
    seconds: float
    """Time since the first request."""
    queue: tuple[WaitingRequest, ...]
    blocks: BlockUse
    blocks_of: dict[int | None, int]
    """Blocks in the table of each request that has a row."""
    tables: dict[int | None, tuple[int, ...]]
    """Those blocks, by their numbers."""


@dataclass(frozen=True)
class Parting:
    """The first step at which two runs of the same requests decide differently; None is a run that has ended."""

    step: int
    first: StepState | None
    second: StepState | None


def state_at(path: Path, load: Load, step: int) -> StepState:
    """Return the state at a step of a recording, counted from 1.

    Raises:
        BadRequest: the recording has fewer steps.
    """
    last = 0
    for decision, board in follow(path, load):
        last = decision.step
        if last == step:
            return state_of(decision, board)
    raise BadRequest(f"{path} has {last} steps; expected --until between 1 and {last}, not {step}", "until")


def parting(first: tuple[Path, Load], second: tuple[Path, Load]) -> tuple[Parting | None, int]:
    """Return where two recordings of the same requests part, None if they do not, and how many steps they share.

    Raises:
        BadRequest: they are of other requests.
    """
    _refuse_other_requests(first[1], second[1])
    same = 0
    for one, other in zip_longest(follow(*first), follow(*second)):
        if one is None or other is None or not one[0].same(other[0]):
            states = [None if found is None else state_of(*found) for found in (one, other)]
            return Parting(same + 1, *states), same
        same += 1
    return None, same


def _refuse_other_requests(first: Load, second: Load) -> None:
    if len(first.submits) != len(second.submits):
        raise BadRequest(
            f"the recordings are of {len(first.submits)} and of {len(second.submits)} requests; "
            "only runs of the same requests can be compared",
            "against",
        )
    for number, (one, other) in enumerate(zip(first.submits, second.submits, strict=True)):
        if one.prompt_token_ids.tobytes() != other.prompt_token_ids.tobytes():
            raise BadRequest(
                f"the recordings are of other requests: the prompts of request {number} differ", "against"
            )


def state_of(decision: Decision, board: Board) -> StepState:
    """Return the state at the step of a decision, of a board that has taken it."""
    courses, submits = board.load.courses, board.load.submits
    queue = tuple(
        WaitingRequest(
            request=number,
            seconds=round(decision.at - courses[number].submitted_at, 6),
            prompt_tokens=courses[number].num_prompt_tokens,
            priority=submits[number].priority,
        )
        for number in board.waiting(decision.at)
    )
    began = courses[0].submitted_at
    blocks_of = {one.request: len(one.blocks) for one in board.running.values()}
    tables = {one.request: tuple(one.blocks) for one in board.running.values()}
    return StepState(decision, round(decision.at - began, 6), queue, board.block_use(), blocks_of, tables)


def as_lines(state: StepState) -> list[str]:
    """Return a state as text."""
    decision = state.decision
    lines = [f"step {decision.step}, {state.seconds:.4f} s after the first request"]
    if decision.num_steps > 1:
        lines[0] += f"; up to {decision.num_steps} steps in one plan"
    told = (("takes in", decision.admitted), ("preempts", decision.preempted), ("has ended", decision.ended))
    lines += [f"{what}: {_numbers(whom)}" for what, whom in told if whom]
    rows = [
        (
            _name(row.request),
            row.start,
            row.start + row.tokens,
            row.drafts,
            state.blocks_of.get(row.request, 0),
        )
        for row in decision.rows
    ]
    lines += ["", f"plan, {len(rows)} rows", *_shortened(("request", "from", "to", "drafts", "blocks"), rows)]
    waiting = [(one.request, f"{one.seconds:.4f}", one.prompt_tokens, one.priority) for one in state.queue]
    lines += ["", f"queue, {len(waiting)} requests"]
    if waiting:
        lines += _shortened(("request", "waits for s", "prompt tokens", "priority"), waiting)
    blocks = state.blocks
    pool = "" if blocks.num_blocks is None else f" of {blocks.num_blocks}, {blocks.free} are free or cached"
    lines += ["", f"blocks: {blocks.held} held{pool}; {blocks.shared} shared"]
    return lines


def parting_lines(names: Sequence[str], found: Parting | None, same: int) -> list[str]:
    """Return where two runs part, as text."""
    if found is None:
        return [f"{names[0]} and {names[1]} decide the same in all {same} steps"]
    lines = [
        f"{names[0]} and {names[1]} decide the same in {same} steps, and differently at step {found.step}"
    ]
    for name, state in zip(names, (found.first, found.second), strict=True):
        lines += ["", f"== {name}", *(["has ended"] if state is None else as_lines(state))]
    return lines


def as_data(state: StepState | None) -> dict[str, Any] | None:
    """Return a state as an object for JSON."""
    if state is None:
        return None
    decision = asdict(state.decision)
    decision["rows"] = [row._asdict() for row in state.decision.rows]
    return {
        "decision": decision,
        "seconds": state.seconds,
        "queue": [asdict(one) for one in state.queue],
        "blocks": asdict(state.blocks) | {"free": state.blocks.free},
        "blocks_of": {_name(request): count for request, count in state.blocks_of.items()},
        "tables": {_name(request): blocks for request, blocks in state.tables.items()},
    }


def _shortened(header: Sequence[str], rows: Sequence[Sequence[object]]) -> Iterator[str]:
    yield from table(header, [[str(value) for value in row] for row in rows[:SHOWN_MAX]])
    if len(rows) > SHOWN_MAX:
        yield f"... and {len(rows) - SHOWN_MAX} more"


def _name(request: int | None) -> str:
    return "of before" if request is None else str(request)


def _numbers(requests: Sequence[int | None]) -> str:
    shown = ", ".join(_name(request) for request in requests[:SHOWN_MAX])
    return shown + (f" and {len(requests) - SHOWN_MAX} more" if len(requests) > SHOWN_MAX else "")
