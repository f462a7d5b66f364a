"""Whether it is quicker to move a block than to compute it again, from what steps and moves have taken.

A step takes `a + b * tokens` seconds, of which a block's tokens cost the `b` part: the rest of the batch pays
for `a` anyway. The line is fitted by least squares over the last few hundred steps; while they are all alike,
which leaves it open, the mean per token stands in. Before anything has been measured, moving is taken to pay.
"""

from __future__ import annotations

DECAY = 0.99  # per step: what was a hundred steps ago counts for a third
SPREAD_MIN = 0.05  # standard deviation of the tokens over their mean, from which a line is fitted


class Costs:
    """Of computing tokens, and of moving a block between the device and the host's memory."""

    def __init__(self) -> None:
        self._weight = self._tokens = self._seconds = self._squares = self._products = 0.0
        self._moves = self._move_seconds = 0.0

    def stepped(self, tokens: int, seconds: float) -> None:
        """A step computed so many tokens."""
        sums = (self._weight, self._tokens, self._seconds, self._squares, self._products)
        new = (1.0, tokens, seconds, tokens * tokens, tokens * seconds)
        self._weight, self._tokens, self._seconds, self._squares, self._products = (
            DECAY * total + value for total, value in zip(sums, new, strict=True)
        )

    def moved(self, blocks: int, seconds: float) -> None:
        """So many blocks were moved."""
        self._moves = DECAY * self._moves + blocks
        self._move_seconds = DECAY * self._move_seconds + seconds

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
    def seconds_per_move(self) -> float | None:
        """What moving one block takes; None while nothing is known."""
        return self._move_seconds / self._moves if self._move_seconds else None

    def move_pays(self, tokens: int, moves: int = 1) -> bool:
        """Whether so many moves of a block cost less than computing its `tokens`."""
        per_token, per_move = self.seconds_per_token, self.seconds_per_move
        return per_token is None or per_move is None or moves * per_move < tokens * per_token
