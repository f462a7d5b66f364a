"""The model runner of a member that follows: its share of each step, as the leader says."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from pageant.actors.executor.batch.scoring import PROMPT_LOGITS_MAX
from pageant.actors.executor.groups.orders import given_embeddings, packed_of, with_adapters
from pageant.actors.executor.groups.word import Word
from pageant.actors.executor.runners.config import RunnerConfig
from pageant.actors.executor.runners.runner import TorchRunner
from pageant.kernels.collectives.group_operations import GroupOperations
from pageant.protocol.ranks import Order, RankStep

__all__ = ["FollowingRunner"]


class FollowingRunner(TorchRunner):
    """Computes its share of each step, and draws nothing.

    Args:
        operations: this member's side of the group, of a rank above 0.
        others: see `TorchRunner`.
    """

    def __init__(self, config: RunnerConfig, *, operations: GroupOperations, **others: Any) -> None:
        self._word = Word(operations.everyone)
        super().__init__(config, operations=operations, **others)

    def follow(self, order: Order) -> None:
        """Compute the steps of a launch for as long as the leader says.

        Raises:
            GroupBroken: the group's operations have ended, or the leader computes another launch.
        """
        for place, step in enumerate(order.steps):
            token_ids = self._hear(order.number, place, step)
            if token_ids is None:
                return
            self._compute(step, token_ids)

    def _hear(self, number: int, place: int, step: RankStep) -> npt.NDArray[np.int64] | None:
        """Wait for the word of a step. Return its tokens, int64 [T], or None if it is not computed."""
        return self._word.hear(number, place, len(step.positions))

    @torch.inference_mode()
    def _compute(self, step: RankStep, token_ids: Any) -> None:
        """Compute a step in the same order as `TorchRunner._launch`, for operations are met in that order."""
        self._copy_between(step.copy_sources, step.copy_destinations)
        packed = packed_of(step, token_ids, len(self.windows))
        ancestors = step.ancestors.copy() if len(step.ancestors) else None
        last_tokens = self._tensor(step.last_tokens.astype("int64"))
        wanted = None if step.reads_all else last_tokens.numpy()
        hidden = self._passes.run(packed, ancestors, with_adapters(step), wanted, given_embeddings(step))
        scored = self._tensor(step.scored.astype("int64"))
        for first in range(0, len(scored), PROMPT_LOGITS_MAX):
            self._decoder.logits(hidden[scored[first : first + PROMPT_LOGITS_MAX]])
        if len(last_tokens):
            self._decoder.logits(hidden if len(last_tokens) == len(hidden) else hidden[last_tokens])
