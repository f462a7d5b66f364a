"""A step: its phase, its chunks, and from what was granted of them to the executor's plan, by columns."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import NamedTuple

from pageant.actors.scheduler.request import ScheduledRequest
from pageant.protocol.allocation import Assigned
from pageant.protocol.arrays import bools, int32
from pageant.protocol.stepping import NewSequence, StepPlan


class Phase(enum.Enum):
    """Where the current step is."""

    IDLE = "idle"
    ASSIGNING = "assigning"
    COMPUTING = "computing"


class Chunk(NamedTuple):
    """`length` tokens of a request, from `start`, in the step at hand."""

    request: ScheduledRequest
    start: int
    length: int

    @property
    def draws(self) -> bool:
        """Whether a token is drawn: the chunk reaches the end of what is known."""
        return self.start + self.length == self.request.num_tokens


def build_plan(
    number: int,
    granted: Assigned,
    freed_rows: Sequence[int],
    chunks: Sequence[Chunk],
    new: Sequence[ScheduledRequest],
) -> StepPlan:
    """The plan of one step.

    Args:
        chunks: what is computed; the first `granted.num_grown` are of requests that were in the batch.
        new: the requests that take a row, in the order of `granted.admitted`.
    """
    rows = int32([chunk.request.row for chunk in chunks])
    return StepPlan(
        number=number,
        epoch=granted.epoch,
        freed_rows=int32(freed_rows),
        new=tuple(
            NewSequence(
                row=request.held_row,
                token_ids=request.token_ids(),
                num_prompt_tokens=len(request.prompt),
                blocks=grant.blocks,
                params=request.params,
            )
            for request, grant in zip(new, granted.admitted, strict=True)
        ),
        grown_rows=rows[: granted.num_grown].copy(),
        grown_counts=granted.grown_counts,
        grown_blocks=granted.grown_blocks,
        rows=rows,
        starts=int32([chunk.start for chunk in chunks]),
        num_tokens=int32([chunk.length for chunk in chunks]),
        draws=bools([chunk.draws for chunk in chunks]),
    )
