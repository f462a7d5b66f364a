"""Plans of several steps in the batch: how they are packed, and what becomes of steps that were not computed."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pageant.actors.executor.batch.batch import Batch
from pageant.actors.executor.batch.inputs import StepInputs
from pageant.actors.executor.computing import CutSignal
from pageant.actors.executor.steps import Step
from pageant.protocol.stepping import StepPlan


class MultiStep:
    """Packs plans of one step or several, and takes in what they drew. Belongs to the actor's loop.

    Args:
        cut: tells the computing thread how far plans are wanted.
    """

    def __init__(self, batch: Batch, cut: CutSignal) -> None:
        self._batch = batch
        self._cut = cut
        self._undone: list[StepInputs] = []
        """Packed steps that were not computed: plans that continue those build on them."""

    def clear(self, scheduler: int) -> None:
        """Forget the plans of a scheduler that is dead, for those of this incarnation."""
        self._undone.clear()
        self._cut.clear(scheduler)

    def cut(self, number: int) -> None:
        """Have the plans up to this number end after the step at hand: somebody waits for what comes after them."""
        self._cut.cut(number)

    def receive(self, plan: StepPlan) -> None:
        """Cut the plans before one that does not continue them: they are over, or nobody waits for them since memory
        was lost."""
        if not plan.continues:
            self.cut(plan.number - 1)

    def pack(self, step: Step) -> None:
        """Take a step's plan into the batch."""
        if not step.plan.continues:
            self._take_back()
        step.inputs = self._batch.apply(step.plan)
        step.prefill_tokens = self._batch.prefill_tokens(step.plan)
        step.further = [self._batch.go_on(step.plan, ahead) for ahead in range(1, step.plan.num_steps)]
        if step.may_stop_short:
            step.ends = self._batch.end_tokens.of(step.inputs.rows)

    def _take_back(self) -> None:
        """Undo what was packed and not computed: the scheduler knows, and goes on from there."""
        for inputs in self._undone:
            self._batch.take_back(inputs)
        self._undone.clear()

    def take_tokens(self, step: Step, token_ids: npt.NDArray[np.int64]) -> None:
        """Take in the tokens of the steps that were computed: int64 [steps * D], for D drawing rows step after step."""
        num_steps = step.launched.num_steps
        computed, undone = step.parts[:num_steps], step.parts[num_steps:]
        drawn = token_ids.reshape(len(computed), len(step.inputs.rows))
        for inputs, tokens in zip(computed, drawn, strict=True):
            self._batch.take_tokens(inputs, tokens)
        self._undone += undone
