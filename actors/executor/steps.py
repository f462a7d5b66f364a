"""A step on its way through the executor, from its plan to what its scheduler is told."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from pageant.actors.executor.batch.endings import RowEnd
from pageant.actors.executor.batch.inputs import StepInputs
from pageant.actors.executor.guided.pending_sample import PendingSample
from pageant.actors.executor.runners.model_runner import StepTokens
from pageant.actors.executor.work import Launched, Work
from pageant.protocol.stepping import LateTokens, StepPlan, StepResult
from pageant.protocol.tracing import TraceContext

__all__ = ["Step", "StepState"]

Int64 = npt.NDArray[np.int64]


class StepState(IntEnum):
    """The state of a step. In the executor's queue, an older step is never in an earlier state than a newer one."""

    RECEIVED = 0
    """Its plan has come, and is not in the batch: it may need tokens of the steps before."""
    PACKED = 1
    """Its plan is in the batch, and its inputs are known. The thread does not have it, or not any more."""
    LAUNCHED = 2
    """The computing thread has it."""
    AWAITING_MASKS = 3
    """All is done that comes before its draw, for which masks are missing. At most one step of the queue."""
    SAMPLED = 4
    """Its tokens are drawn, and perhaps on their way from the device."""
    ANSWERED = 5
    """Its scheduler was told, or is dead. It has left the queue."""


_NEXT = (
    (StepState.PACKED,),
    (StepState.LAUNCHED, StepState.ANSWERED),
    (StepState.PACKED, StepState.AWAITING_MASKS, StepState.SAMPLED),
    (StepState.SAMPLED,),
    (StepState.ANSWERED,),
    (),
)
"""What a step may become, by its state."""


@dataclass(eq=False, repr=False)
class Step:
    """A plan, and what has come of it so far. Belongs to the actor's loop; the thread is given a `Work`."""

    plan: StepPlan
    """The message as it came."""
    scheduler: str
    """The address that is told of the tokens."""
    incarnation: int
    """The scheduler's: a step of one that is dead is not launched, and not answered."""
    came: float
    """When the plan came, in the clock's seconds."""
    state: StepState = StepState.RECEIVED
    """Changed by `become` alone."""
    inputs: StepInputs = field(init=False)
    """Its packed tokens, or those of the first of its plan's steps. Set from PACKED on."""
    further: list[StepInputs] = field(default_factory=list)
    """The plan's steps after the first. Set from PACKED on."""
    ends: tuple[RowEnd, ...] | None = None
    """What ends each of its drawing rows, if fewer steps may be computed than the plan says."""
    traces: dict[int, TraceContext] = field(init=False)
    """The rows whose requests are traced. Set from PACKED on."""
    prefill_tokens: int = 0
    """How many of its tokens were known when their sequences took their rows. Set from PACKED on."""
    moves_needed: int = 0
    """How many moves of blocks, counted over the executor's life, are to be made before it is launched."""
    void: tuple[int, ...] = ()
    """Places of drawing rows that are computed without the token before. Settled with each launch."""
    launched: Launched = field(init=False)
    """How its launch went. Set from AWAITING_MASKS on."""
    tokens: StepTokens = field(init=False)
    """Its tokens. Set from SAMPLED on."""
    computed: float | None = None
    """When its tokens were there, in the clock's seconds; None while they are on their way from the device."""
    missing: tuple[int, ...] = ()
    """Places of drawing rows whose masks were late, so that their tokens here mean nothing."""
    deferred: tuple[int, ...] = ()
    """Those of the missing places whose tokens are drawn later."""

    def become(self, state: StepState) -> None:
        """Change its state."""
        assert state in _NEXT[self.state], f"a step that is {self.state.name} does not become {state.name}"
        self.state = state

    @property
    def may_stop_short(self) -> bool:
        """Tell whether fewer steps may be computed than the plan says."""
        return self.plan.num_steps > 1 or self.plan.continues

    @property
    def parts(self) -> list[StepInputs]:
        """Return the steps of the plan, in order."""
        return [self.inputs, *self.further]

    @property
    def num_tokens(self) -> int:
        """Return the number of tokens that each of the steps computes."""
        return len(self.inputs.positions)

    def work(self, number: int) -> Work:
        """Return what the computing thread is given of it."""
        inputs = self.inputs.voided(self.void) if self.void else self.inputs
        if self.void and inputs.guided is not None:
            inputs = replace(inputs, guided=inputs.guided.without(self.void))
        plan = self.plan
        return Work(number, self.incarnation, plan.number, plan.continues, (inputs, *self.further), self.ends)

    @property
    def awaited(self) -> PendingSample:
        """The logits to sample from, while the step awaits masks."""
        assert self.launched.pending is not None, "it awaits masks"
        return self.launched.pending

    def result(self, token_ids: Int64, seconds: float) -> StepResult:
        """Return the answer: the tokens, and that they took so many seconds on the device."""
        logprobs, prompt_logprobs = self.tokens.logprobs()
        proposed = self.tokens.proposed
        return StepResult(
            number=self.plan.number,
            epoch=self.plan.epoch,
            rows=self.inputs.rows,
            token_ids=token_ids.astype("int32"),
            seconds=seconds,
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
            failed={**self.tokens.failed, **self.inputs.failing},
            deferred=self.deferred,
            void=self.void,
            num_steps=self.launched.num_steps,
            drafting_seconds=self.tokens.drafting_seconds,
            draft_counts=proposed.counts,
            draft_ids=proposed.token_ids,
            draft_parents=proposed.parents,
            pooled=self.tokens.pooled(),
        )

    def late_tokens(self, rows: Int64, token_ids: Int64, tokens: StepTokens) -> LateTokens:
        """Return the answer about rows that had been deferred."""
        return LateTokens(
            number=self.plan.number,
            epoch=self.plan.epoch,
            rows=rows.astype("int32"),
            token_ids=token_ids.astype("int32"),
            logprobs=tokens.logprobs()[0],
            failed=tokens.failed,
        )
