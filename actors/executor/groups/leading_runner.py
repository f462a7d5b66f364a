"""The model runner of a group's leader: each step begins with the word to the others, and is computed with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pageant.actors.executor.batch.inputs import StepInputs
from pageant.actors.executor.groups.drawing_runner import DrawingRunner
from pageant.actors.executor.groups.word import Word
from pageant.actors.executor.guided.pending_sample import PendingSample
from pageant.actors.executor.runners.config import RunnerConfig
from pageant.actors.executor.runners.model_runner import StepTokens
from pageant.actors.executor.work import Work
from pageant.kernels.collectives.group_operations import GroupOperations
from pageant.protocol.arrays import int64

__all__ = ["LeadingRunner"]


class LeadingRunner(DrawingRunner):
    """Computes its own share of each step, and draws.

    Args:
        operations: the leader's side of the group, of rank 0.
        others: see `TorchRunner`.
    """

    def __init__(self, config: RunnerConfig, *, operations: GroupOperations, **others: Any) -> None:
        self._word = Word(operations.everyone)
        self._number = 0
        self._left: Sequence[StepInputs] = ()
        self._place = 0
        super().__init__(config, operations=operations, **others)

    def ordered(self, work: Work) -> None:
        """See `LeadsOthers`. Tokens are said when a step begins."""

    def begin(self, work: Work) -> None:
        """See `LeadsOthers`."""
        self._number, self._left, self._place = work.number, work.steps, 0

    def finish(self) -> None:
        """See `LeadsOthers`."""
        if self._place < len(self._left):
            self._word.end(self._number, self._place, len(self._left[self._place].positions))
        self._left = ()

    def launch(self, inputs: StepInputs) -> StepTokens | PendingSample:
        """See `ModelRunner`."""
        token_ids = inputs.token_ids.copy()
        token_ids[inputs.unknown] = self._last_drawn.numpy()[inputs.unknown_rows]
        self._word.go_on(self._number, self._place, token_ids)
        self._place += 1
        return self._launch(replace(inputs, token_ids=token_ids, unknown=int64(), unknown_rows=int64()))
