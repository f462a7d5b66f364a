"""The leader's word to the first stage of a pipeline: the tokens of each launch, as soon as they are known.

Stages compute different launches at the same time. So the first one is told its tokens ahead of the leader's own part.
Tokens that are known when a launch is ordered go with the order. Others are drawn by launches before it, and are sent
when these are over. No stage needs to be told anything else: what reaches it is what it computes.
"""

from __future__ import annotations

import threading
from collections import deque

import numpy as np
import numpy.typing as npt
import torch

from pageant.actors.executor.batch.inputs import StepInputs
from pageant.actors.executor.work import Work
from pageant.kernels.collectives.base import Collectives, GroupBroken

__all__ = ["WordsAhead", "hear_tokens"]

Int64 = npt.NDArray[np.int64]


class WordsAhead:
    """Tokens of launches that are ordered and not over. `ordered` is for the actor's loop, `over` for its thread.

    Args:
        everyone: the operations of all members.
        first_stage: the ranks of the first stage.
        last_drawn: int64 [rows of the batch], the token that each drew last, of which the computing thread writes.
    """

    def __init__(self, everyone: Collectives, first_stage: range, last_drawn: Int64) -> None:
        self._everyone, self._first_stage, self._last_drawn = everyone, first_stage, last_drawn
        self._lock = threading.Lock()
        self._drawing: dict[int, set[int]] = {}
        """Launches that are not over, and the rows for which each draws. Guarded by the lock."""
        self._unsaid: deque[tuple[int, StepInputs]] = deque()
        """Launches whose tokens are not known yet, in order. Guarded by the lock."""

    def ordered(self, work: Work) -> Int64 | None:
        """Note a launch that is ordered. Return its tokens, int64 [T], if they are known; else they are sent later."""
        (inputs,) = work.steps
        with self._lock:
            awaits = self._awaits(work.number, inputs)
            self._drawing[work.number] = set(inputs.rows.tolist())
            if awaits:
                self._unsaid.append((work.number, inputs))
        return None if awaits else self._tokens(inputs)

    def over(self, number: int) -> None:
        """Send the tokens that are known by a launch's end. A launch that was refused has drawn nothing."""
        known: list[tuple[int, StepInputs]] = []
        with self._lock:
            del self._drawing[number]
            while self._unsaid and not self._awaits(*self._unsaid[0]):
                known.append(self._unsaid.popleft())
        for launch, inputs in known:
            word = torch.from_numpy(np.concatenate([np.array([launch], np.int64), self._tokens(inputs)]))
            for rank in self._first_stage:
                self._everyone.send(word, rank)

    def _awaits(self, number: int, inputs: StepInputs) -> bool:
        """Tell whether a launch before draws some of the step's tokens."""
        unknown = set(inputs.unknown_rows.tolist())
        return any(launch < number and not rows.isdisjoint(unknown) for launch, rows in self._drawing.items())

    def _tokens(self, inputs: StepInputs) -> Int64:
        token_ids = inputs.token_ids.copy()
        token_ids[inputs.unknown] = self._last_drawn[inputs.unknown_rows]
        return token_ids


def hear_tokens(everyone: Collectives, number: int, num_tokens: int) -> Int64:
    """Wait, on the first stage, for the tokens of a launch, int64 [T].

    Raises:
        GroupBroken: the leader speaks of another launch, or of none any more.
    """
    word = torch.empty(1 + num_tokens, dtype=torch.int64)
    everyone.receive(word, 0)
    if int(word[0]) != number:
        raise GroupBroken(
            f"the leader sent the tokens of launch {int(word[0])}; those of {number} were expected"
        )
    return word[1:].numpy()
