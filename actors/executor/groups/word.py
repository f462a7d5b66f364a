"""The leader's word: the first operation of each step of a group.

Members wait for it only when they were ordered to compute the launch that it belongs to. It says whether the step is
computed at all, and of what tokens: those that were not known when the order was sent are known by now.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from pageant.kernels.collectives.base import Collectives, GroupBroken

__all__ = ["Word"]

Int64 = npt.NDArray[np.int64]

_GOES_ON, _ENDS = 1, 0
_HEADER = 3
"""Integers before the token ids: the number of the launch, the step's place in it, and one of the two above."""


class Word:
    """Says and hears the word of each step. Used from a member's computing thread alone."""

    def __init__(self, collectives: Collectives) -> None:
        self._collectives = collectives

    def go_on(self, number: int, place: int, token_ids: Int64) -> None:
        """Have the others compute a step of these tokens, int64 [T], all of which are known."""
        self._say(number, place, _GOES_ON, token_ids)

    def end(self, number: int, place: int, num_tokens: int) -> None:
        """Have the others leave this step of a launch, of so many tokens, and those after it."""
        self._say(number, place, _ENDS, np.zeros(num_tokens, np.int64))

    def _say(self, number: int, place: int, verdict: int, token_ids: Int64) -> None:
        word = np.concatenate([np.array([number, place, verdict], np.int64), token_ids])
        self._collectives.broadcast(torch.from_numpy(word))

    def hear(self, number: int, place: int, num_tokens: int) -> Int64 | None:
        """Wait for the word of a step. Return its tokens, int64 [T], or None if it is not computed.

        Raises:
            GroupBroken: the leader speaks of another step, or of none any more.
        """
        word = torch.zeros(_HEADER + num_tokens, dtype=torch.int64)
        self._collectives.broadcast(word)
        said, said_place, verdict = word[:_HEADER].tolist()
        if (said, said_place) != (number, place):
            raise GroupBroken(
                f"the leader computes step {said_place} of launch {said}; step {place} of launch {number} was expected"
            )
        return word[_HEADER:].numpy() if verdict == _GOES_ON else None
