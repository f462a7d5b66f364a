"""The last steps of an executor: what each computed, and what it waited for."""

from __future__ import annotations

from collections import deque

import numpy as np

from pageant.actors.executor.guided.guiding import RowTokens
from pageant.actors.executor.steps import Step
from pageant.protocol.statistics import StepRecord

STEPS_KEPT = 256


class StepLog:
    """Keeps records of the last plans that were answered. Belongs to the actor's loop."""

    def __init__(self) -> None:
        self._number = 0
        """Steps that were answered so far."""
        self._records: deque[StepRecord] = deque(maxlen=STEPS_KEPT)
        """The oldest first."""

    def add(self, step: Step, drawn: RowTokens | None, num_sampled: int, ended: float) -> None:
        """Record a step whose tokens were taken in.

        Args:
            drawn: its tokens that count; None is of a plan of several steps.
            num_sampled: the number of its tokens.
            ended: when they were there, in seconds of the executor's clock.
        """
        plan, launched = step.plan, step.launched
        count = launched.num_steps
        if not count:
            return
        self._number += count
        drafted = len(plan.draft_ids)
        prefill = step.prefill_tokens
        self._records.append(
            StepRecord(
                self._number,
                count,
                len(plan.rows),
                len(plan.new),
                prefill,
                int(plan.num_tokens.sum()) * count - prefill,
                drafted,
                # The first token of a row follows no draft.
                len(drawn.rows) - len(np.unique(drawn.rows)) if drafted and drawn is not None else 0,
                num_sampled if drawn is None else len(drawn.rows),
                step.came,
                launched.began,
                ended,
                step.tokens.drafting_seconds,
                ended - launched.reached_draw if launched.reached_draw else 0.0,
            )
        )

    def last(self, steps_max: int, since: float) -> tuple[StepRecord, ...]:
        """Return at most so many records, the last ones, of plans that ended after `since`, in seconds of the clock."""
        found: deque[StepRecord] = deque()
        for record in reversed(self._records):
            if len(found) >= steps_max or record.ended < since:
                break
            found.appendleft(record)
        return tuple(found)
