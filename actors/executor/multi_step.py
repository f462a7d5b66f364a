"""Plans of several steps: how many of them are computed, and what becomes of the others."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from pageant.actors.executor.batch import Batch
from pageant.actors.executor.inputs import StepInputs
from pageant.actors.executor.model_runner import Drawn, ModelRunner
from pageant.actors.executor.steps import DrawnSteps, Step
from pageant.actors.executor.undrawn import Undrawn
from pageant.protocol.stepping import StepPlan


class MultiStep:
    """Packs, computes and takes in the steps of such plans. `begin` and `compute` are for the thread that computes."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        self._cut = 0  # plans up to this one begin no step but their first
        self._stopped = False  # whether the last plan stopped short, or all of its rows have ended
        # Packed steps that were not computed then: plans that continue those build on them.
        self._undone: list[StepInputs] = []

    def clear(self) -> None:
        """Forgets the plans of a scheduler that is dead."""
        self._undone.clear()
        self._cut = 0

    def cut(self, number: int) -> None:
        """Somebody waits for what comes after the plans up to this one."""
        self._cut = max(self._cut, number)

    def came(self, plan: StepPlan) -> None:
        """A plan that does not continue those before it: they are over, or nobody waits for them since memory was
        lost."""
        if not plan.continues:
            self.cut(plan.number - 1)

    def pack(self, step: Step) -> None:
        """Takes a plan into the batch."""
        if not step.plan.continues:
            self._take_back()
        step.inputs = self._batch.apply(step.plan)
        step.further = [self._batch.go_on(step.plan, ahead) for ahead in range(1, step.plan.num_steps)]

    def _take_back(self) -> None:
        """The scheduler knows what was not computed, and goes on from there."""
        for inputs in self._undone:
            self._batch.take_back(inputs)
        self._undone.clear()

    def begin(self, plan: StepPlan) -> None:
        """A plan's turn has come."""
        if not plan.continues:
            self._stopped = False
            self._batch.endings.forget()

    def compute(self, step: Step, runner: ModelRunner, is_wanted: Callable[[], bool]) -> None:
        """All steps of a plan, until it is to stop short, all of its rows have ended, or nobody wants it any more."""
        drawn: list[Drawn] = []
        for inputs in step.parts:
            self._stopped |= bool(drawn) and step.plan.number <= self._cut
            if self._stopped or not is_wanted():
                break
            outcome = runner.launch(inputs)
            assert not isinstance(outcome, Undrawn), "guided rows come in single steps"
            drawn.append(outcome)
            if outcome.ready:
                tokens = outcome.token_ids()
                self._stopped = self._batch.endings.all_ended(inputs.rows, inputs.sampling.position, tokens)
        step.num_steps, step.drawn = len(drawn), DrawnSteps(drawn)

    def take_tokens(self, step: Step, token_ids: npt.NDArray[np.int64]) -> None:
        """What the steps drew that were computed, one after another."""
        computed, undone = step.parts[: step.num_steps], step.parts[step.num_steps :]
        drawn = token_ids.reshape(len(computed), len(step.inputs.rows))
        for inputs, tokens in zip(computed, drawn, strict=True):
            self._batch.take_tokens(inputs, tokens)
        self._undone += undone
