"""A step on its way through the executor, from its plan to what its scheduler is told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from pageant.actors.executor.inputs import StepInputs
from pageant.actors.executor.undrawn import Undrawn
from pageant.protocol.logprobs import Logprobs
from pageant.protocol.stepping import LateTokens, StepPlan, StepResult
from pageant.protocol.tracing import TraceContext
from pageant.protocol.verification import NO_DRAFTS, Drafts

if TYPE_CHECKING:
    from pageant.actors.executor.model_runner import Drawn

__all__ = ["DrawnSteps", "Step"]

Int64 = npt.NDArray[np.int64]


@dataclass(eq=False)
class Step:
    """A plan, and who sent it."""

    plan: StepPlan
    scheduler: str
    incarnation: int
    inputs: StepInputs = field(init=False)
    traces: dict[int, TraceContext] = field(init=False)
    drawn: Drawn = field(init=False)
    undrawn: Undrawn | None = None  # while it waits for masks
    moves_needed: int = 0  # how many moves are to be made before
    began: float = 0.0
    launched: float = 0.0  # when all but the draw was done, or on its way, if masks were late then
    computed: float | None = None  # when it was, unless its tokens are still on their way
    missing: tuple[int, ...] = ()  # of its drawing rows, those whose masks were late
    deferred: tuple[int, ...] = ()  # those of them that are drawn later
    void: tuple[int, ...] = ()  # and those that were computed without the token before
    further: list[StepInputs] = field(default_factory=list)  # those after the first, of a plan of several
    num_steps: int = 1  # that were computed

    @property
    def may_stop_short(self) -> bool:
        """Whether fewer steps may be computed than its plan says."""
        return self.plan.num_steps > 1 or self.plan.continues

    @property
    def parts(self) -> list[StepInputs]:
        """Its steps, one after another."""
        return [self.inputs, *self.further]

    def result(self, token_ids: Int64, seconds: float) -> StepResult:
        """What it drew, once that is known, in so many seconds on the device."""
        logprobs, prompt_logprobs = self.drawn.logprobs()
        proposed = self.drawn.proposed
        return StepResult(
            number=self.plan.number,
            epoch=self.plan.epoch,
            rows=self.inputs.rows,
            token_ids=token_ids.astype("int32"),
            seconds=seconds,
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
            failed={**self.drawn.failed, **self.inputs.failing},
            deferred=self.deferred,
            void=self.void,
            num_steps=self.num_steps,
            drafting_seconds=self.drawn.drafting_seconds,
            draft_counts=proposed.counts,
            draft_ids=proposed.token_ids,
            draft_parents=proposed.parents,
        )

    def late_tokens(self, rows: Int64, token_ids: Int64, drawn: Drawn) -> LateTokens:
        """What some of its rows drew that had been deferred."""
        return LateTokens(
            number=self.plan.number,
            epoch=self.plan.epoch,
            rows=rows.astype("int32"),
            token_ids=token_ids.astype("int32"),
            logprobs=drawn.logprobs()[0],
            failed=drawn.failed,
        )


class DrawnSteps:
    """The tokens of several steps, or of none, one after another; see `Drawn`."""

    missing = np.empty(0, np.int64)
    late: Undrawn | None = None
    proposed: Drafts = NO_DRAFTS
    drafting_seconds = 0.0

    def __init__(self, steps: Sequence[Drawn]) -> None:
        self._steps = steps
        self.ready = all(step.ready for step in steps)
        self.failed: dict[int, str] = {}

    def token_ids(self) -> Int64:
        """Of all rows, step after step."""
        return np.concatenate([np.empty(0, np.int64), *(step.token_ids() for step in self._steps)])

    def logprobs(self) -> tuple[Logprobs | None, Logprobs | None]:
        """Nobody asks."""
        return None, None
