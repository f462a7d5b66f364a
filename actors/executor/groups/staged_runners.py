"""The model runners of a group in stages: each computes its layers of a step when the stage before has.

The order of launches is the same on all members, and each passes on exactly one stream for each. A launch that the
leader refuses is computed by the stages before in vain, and again when it comes again: to the same blocks.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from pageant.actors.executor.batch.inputs import StepInputs
from pageant.actors.executor.groups.drawing_runner import DrawingRunner
from pageant.actors.executor.groups.following_runner import FollowingRunner
from pageant.actors.executor.groups.word import Word
from pageant.actors.executor.groups.words_ahead import WordsAhead, hear_tokens
from pageant.actors.executor.guided.pending_sample import PendingSample
from pageant.actors.executor.runners.config import RunnerConfig
from pageant.actors.executor.runners.model_runner import StepTokens
from pageant.actors.executor.work import Work
from pageant.kernels.collectives.group_operations import GroupOperations
from pageant.protocol.arrays import int64
from pageant.protocol.ranks import RankStep

__all__ = ["StagedFollower", "StagedLeader"]

Int64 = npt.NDArray[np.int64]


class StagedLeader(DrawingRunner):
    """Computes the last layers of each step, and draws.

    Args:
        operations: the leader's side of the group, of rank 0.
        others: see `TorchRunner`.
    """

    def __init__(self, config: RunnerConfig, *, operations: GroupOperations, **others: Any) -> None:
        super().__init__(config, operations=operations, **others)
        each = operations.stage.size
        first_stage = range(operations.size - each, operations.size)
        self._words = WordsAhead(operations.everyone, first_stage, self._last_drawn.numpy())
        self._verdict = Word(operations.stage)
        """To the other ranks of the last stage: whether a launch is computed."""
        self._number = 0
        self._left: StepInputs | None = None
        """The step of the launch at hand, until it is computed."""

    def ordered(self, work: Work) -> Int64 | None:
        """See `LeadsOthers`."""
        return self._words.ordered(work)

    def begin(self, work: Work) -> None:
        """See `LeadsOthers`."""
        self._number, (self._left,) = work.number, work.steps

    def launch(self, inputs: StepInputs) -> StepTokens | PendingSample:
        """See `ModelRunner`."""
        self._verdict.go_on(self._number, 0, int64())
        self._left = None
        return self._launch(inputs)

    def finish(self) -> None:
        """See `LeadsOthers`."""
        if self._left is not None:
            self._verdict.end(self._number, 0, 0)
            self._decoder.pass_over(len(self._left.positions))
            self._left = None
        self._words.over(self._number)


class StagedFollower(FollowingRunner):
    """Computes its layers of each step, and draws nothing.

    Args:
        operations: this member's side of the group, of a rank above 0.
        others: see `TorchRunner`.
    """

    def __init__(self, config: RunnerConfig, *, operations: GroupOperations, **others: Any) -> None:
        super().__init__(config, operations=operations, **others)
        assert operations.links is not None, "the group has several stages"
        self._everyone, self._links = operations.everyone, operations.links
        self._verdict = Word(operations.stage)

    def _hear(self, number: int, place: int, step: RankStep) -> Int64 | None:
        """See `FollowingRunner`. Only the first stage embeds tokens, and only the last one is told of refusals."""
        num_tokens = len(step.positions)
        if self._links.is_first:
            known = step.token_ids.astype(np.int64)
            return known if len(known) else hear_tokens(self._everyone, number, num_tokens)
        if self._links.is_last and self._verdict.hear(number, place, 0) is None:
            self._decoder.pass_over(num_tokens)
            return None
        return np.zeros(num_tokens, np.int64)
