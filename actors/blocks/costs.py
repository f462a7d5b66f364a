"""Whether it is quicker to move a block than to compute it again, from what steps and moves have taken.

A step takes `a + b * tokens` seconds, of which a block's tokens cost the `b` part: the rest of the batch pays
for `a` anyway. The line is fitted by least squares over the last few hundred steps; while they are all alike,
which leaves it open, the mean per token stands in. Before anything has been measured, moving is taken to pay.
What a move is taken to cost fades from step to step, so that what was slow once is tried again some day.
"""

from __future__ import annotations

import enum

from pageant.protocol.tiers import Moved

DECAY = 0.99  # per step: what was a hundred steps ago counts for a third
SPREAD_MIN = 0.05  # standard deviation of the tokens over their mean, from which a line is fitted
FADING = 0.999  # per step: what a move costs is taken for half after seven hundred without one


class Move(enum.Enum):
    """The ways that a block can go."""

    HOST = "host"  # between the device and the host's memory, either way
    WRITE = "write"  # from there to the disk
    READ = "read"  # from the disk to the device


class Costs:
    """Of computing tokens, and of moving a block."""

    def __init__(self) -> None:
        self._weight = self._tokens = self._seconds = self._squares = self._products = 0.0
        self._moves = dict.fromkeys(Move, 0.0)
        self._move_seconds = dict.fromkeys(Move, 0.0)

    def stepped(self, tokens: int, seconds: float) -> None:
        """A step computed so many tokens."""
        sums = (self._weight, self._tokens, self._seconds, self._squares, self._products)
        new = (1.0, tokens, seconds, tokens * tokens, tokens * seconds)
        self._weight, self._tokens, self._seconds, self._squares, self._products = (
            DECAY * total + value for total, value in zip(sums, new, strict=True)
        )
        for way in Move:
            self._move_seconds[way] *= FADING

    def moved(self, way: Move, moved: Moved) -> None:
        """Blocks were moved."""
        if moved.blocks:
            self._moves[way] = DECAY * self._moves[way] + moved.blocks
            self._move_seconds[way] = DECAY * self._move_seconds[way] + moved.seconds

    @property
    def seconds_per_token(self) -> float | None:
        """What one more token in a step costs; None while nothing is known."""
        if not self._seconds:
            return None
        spread = self._squares * self._weight - self._tokens**2
        if spread > (SPREAD_MIN * self._tokens) ** 2:
            slope = (self._products * self._weight - self._tokens * self._seconds) / spread
            if slope > 0:
                return slope
        return self._seconds / self._tokens

    @property
    def seconds_per_step(self) -> float | None:
        """What a step takes; None while nothing is known."""
        return self._seconds / self._weight if self._seconds else None

    def seconds_per_move(self, way: Move) -> float | None:
        """What moving one block takes; None while nothing is known."""
        return self._move_seconds[way] / self._moves[way] if self._move_seconds[way] else None

    def move_pays(self, tokens: float, *ways: Move) -> bool:
        """Whether moving a block all these ways costs less than computing its `tokens`."""
        per_token = self.seconds_per_token
        return (
            per_token is None or sum(self.seconds_per_move(way) or 0.0 for way in ways) < tokens * per_token
        )
