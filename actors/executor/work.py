"""Messages between an executor's event loop and its computing thread: frozen inputs, and an outcome back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from pageant.actors.executor.batch.endings import RowEnd
from pageant.actors.executor.batch.inputs import StepInputs
from pageant.actors.executor.guided.pending_sample import PendingSample
from pageant.protocol.logprobs import Logprobs
from pageant.protocol.pooling import PooledRows
from pageant.protocol.verification import NO_DRAFTS, Drafts

if TYPE_CHECKING:
    from pageant.actors.executor.runners.model_runner import StepTokens

__all__ = ["Launched", "MultiStepTokens", "Work"]

Int64 = npt.NDArray[np.int64]


class Work(NamedTuple):
    """Frozen inputs of one launch."""

    number: int
    """Counts the launches of an executor's life, from 1. A step that is handed over again has another."""
    scheduler: int
    """The incarnation of the scheduler whose plan it is."""
    plan: int
    """The plan's number."""
    continues: bool
    """Whether the plan continues the one before; see `StepPlan`."""
    steps: tuple[StepInputs, ...]
    """The plan's steps, one after another; at least one."""
    ends: tuple[RowEnd, ...] | None
    """What ends each of the drawing rows, for a plan of which fewer steps may be computed; None for others."""


class Launched(NamedTuple):
    """Outcome of one launch. Times are the clock's, in seconds."""

    began: float
    """When the thread took up the launch."""
    tokens: StepTokens | None
    """The tokens, perhaps on their way from the device; None if the step awaits masks."""
    pending: PendingSample | None = None
    """The step before its draw, if it awaits masks."""
    reached_draw: float = 0.0
    """When all was done that comes before the draw, without the wait for masks. Only set where masks were late."""
    computed: float | None = None
    """When the tokens were there; None if they were not yet."""
    num_steps: int = 1
    """How many of the plan's steps were computed."""


class MultiStepTokens:
    """The tokens of several steps, or of none, one after another; see `StepTokens`."""

    missing = np.empty(0, np.int64)
    late: PendingSample | None = None
    proposed: Drafts = NO_DRAFTS
    drafting_seconds = 0.0

    def __init__(self, steps: Sequence[StepTokens]) -> None:
        self._steps = steps
        self.ready = all(step.ready for step in steps)
        self.failed: dict[int, str] = {}

    def token_ids(self) -> Int64:
        """Return the token ids of all rows, step after step."""
        return np.concatenate([np.empty(0, np.int64), *(step.token_ids() for step in self._steps)])

    def logprobs(self) -> tuple[Logprobs | None, Logprobs | None]:
        """Return no log-probabilities: nobody asks."""
        return None, None

    def pooled(self) -> PooledRows | None:
        """Return None: sequences that are pooled end with a step of its own."""
        return None
