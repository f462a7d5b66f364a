"""The computing thread of an executor: frozen inputs in, outcomes out.

The actor's loop hands launches over ahead of time, so that the thread goes on without a word from the loop. What a
launch is computed from is settled when it is handed over. Two things cannot be: how far a plan of several steps is
wanted, which a `CutSignal` says, and which masks have come, which the `MaskTable` says. Both may be read at any time.

Steps may depend on masks that are late. Then the thread stops before the draw and refuses what was handed over after
that step, until the loop, which decides how long to wait, has the step drawn.
"""

from __future__ import annotations

from collections.abc import Sequence

from pageant.actors.executor.batch.endings import EndedRows, RowEnd
from pageant.actors.executor.guided.keeping import mask_deadline
from pageant.actors.executor.guided.pending_sample import PendingSample
from pageant.actors.executor.runners.model_runner import ModelRunner, StepTokens
from pageant.actors.executor.work import Launched, MultiStepTokens, Work
from pageant.actors.runtime.clock import Clock

__all__ = ["ComputingThread", "CutSignal"]


class CutSignal:
    """Tells the computing thread how far plans are wanted. Written on the actor's loop alone.

    One immutable pair is replaced as a whole, so a reader finds either the old or the new.
    """

    def __init__(self) -> None:
        self._wanted = (0, 0)  # the scheduler's incarnation; plans up to this number begin no further step

    def clear(self, scheduler: int) -> None:
        """Want the plans of this scheduler alone from now on."""
        self._wanted = (scheduler, 0)

    def cut(self, number: int) -> None:
        """Want no further step of the plans up to this number, which go on to the end of the step at hand."""
        scheduler, cut = self._wanted
        if number > cut:
            self._wanted = (scheduler, number)

    def is_wanted(self, work: Work) -> bool:
        """Return whether the scheduler of this plan is still the one whose plans are computed."""
        return self._wanted[0] == work.scheduler

    def is_cut(self, work: Work) -> bool:
        """Return whether no further step of this plan is wanted."""
        return work.plan <= self._wanted[1]


class ComputingThread:
    """Computes launches, one at a time. Its methods are for the computing thread, and so are its fields.

    A GPU's executor has two threads, of which one waits for tokens; still one launch is computed at a time.

    Args:
        soon_seconds: for how long it waits for masks itself before it leaves the wait to the loop.
    """

    def __init__(self, runner: ModelRunner, cut: CutSignal, clock: Clock, soon_seconds: float) -> None:
        self._runner, self._cut, self._clock, self._soon_seconds = runner, cut, clock, soon_seconds
        self._is_holding = False  # a step awaits masks: nothing is begun
        self._recalled = 0  # launches up to this number were recalled: they are handed over again
        self._has_stopped = False  # the last plan stopped short, or all of its rows have ended
        self._ended = EndedRows()  # of the plan at hand, and of those that it continues

    def launch(self, work: Work) -> Launched | None:
        """Compute what was handed over. Returns None if it is refused, since a step before it awaits masks."""
        if self._is_holding or work.number <= self._recalled:
            return None
        began = self._clock.now()
        if not work.continues:
            self._has_stopped = False
            self._ended.clear()
        if work.ends is not None:
            return self._launch_several(work, work.ends, began)
        outcome = self._runner.launch(work.steps[0])
        if not isinstance(outcome, PendingSample):
            return Launched(began, outcome, computed=self._clock.now() if outcome.ready else None)
        reached = self._clock.now() - outcome.waited
        if outcome.guided.come_until(self._wait_until(outcome, began, reached), self._clock):
            drawn = self._runner.draw(outcome)
            computed = self._clock.now() if drawn.ready else None
            return Launched(began, drawn, reached_draw=reached, computed=computed)
        self._is_holding = True
        return Launched(began, None, outcome, reached)

    def _wait_until(self, pending: PendingSample, began: float, reached: float) -> float:
        left = mask_deadline(pending, began, reached) - self._clock.now()
        return reached + min(self._soon_seconds, left)

    def _launch_several(self, work: Work, ends: Sequence[RowEnd], began: float) -> Launched:
        """Compute the steps of a plan until it is cut, all of its rows have ended, or nobody wants it any more."""
        steps: list[StepTokens] = []
        for inputs in work.steps:
            self._has_stopped |= bool(steps) and self._cut.is_cut(work)
            if self._has_stopped or not self._cut.is_wanted(work):
                break
            outcome = self._runner.launch(inputs)
            assert not isinstance(outcome, PendingSample), "guided rows come in single steps"
            steps.append(outcome)
            if outcome.ready:
                positions, tokens = inputs.sampling.position, outcome.token_ids()
                self._has_stopped = self._ended.all_ended(inputs.rows, ends, positions, tokens)
        of_all = MultiStepTokens(steps)
        computed = self._clock.now() if of_all.ready else None
        return Launched(began, of_all, computed=computed, num_steps=len(steps))

    def draw_awaiting(self, pending: PendingSample, recalled: int) -> StepTokens:
        """Draw the step that awaits masks, with those that have come, and go on.

        Args:
            recalled: the number of the last launch that was handed over.
        """
        self._is_holding, self._recalled = False, recalled
        return self._runner.draw(pending)
