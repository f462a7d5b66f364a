"""Costs of moving a block and of computing it again, estimated from the times of steps and moves.

A step takes `a + b * tokens` seconds. A block's tokens cost the `b` part: the rest of the batch pays for `a`
anyway. The line is fitted by least squares over the last few hundred steps. While all steps have the same size,
which leaves it undetermined, the mean per token replaces it. Before any measurement, moves are assumed to pay.
The estimated cost of a move decays from step to step, so that a move that was slow once is tried again.
"""

from __future__ import annotations

import enum

from pageant.actors.runtime.step_time import StepTime
from pageant.protocol.tiers import Moved

# Weight of a measurement, per later step: a hundred steps later it counts for a third.
DECAY = 0.99
# The least ratio of the tokens' standard deviation to their mean for which a line is fitted.
SPREAD_MIN = 0.05
# Decay of a move's cost, per step: after seven hundred steps without one it is half.
FADING = 0.999


class Move(enum.Enum):
    """Routes of a block."""

    # Between the device and the host's memory, in either direction.
    HOST = "host"
    # From the host's memory to the disk.
    WRITE = "write"
    # From the disk to the device.
    READ = "read"
    # From another host's store, or from a store's disk, to the memory of this host's.
    FETCH = "fetch"


TIER_MOVES = (Move.HOST, Move.WRITE, Move.READ)
"""Routes of an executor's own tiers, in the order of `MoveTimes`."""


class MoveCosts:
    """Estimates of computing a token and of moving a block."""

    def __init__(self) -> None:
        self._steps = StepTime(DECAY)
        self._moves = dict.fromkeys(Move, 0.0)
        self._move_seconds = dict.fromkeys(Move, 0.0)

    def stepped(self, tokens: int, seconds: float) -> None:
        """Record a step of `tokens` tokens that took `seconds`."""
        self._steps.add(tokens, seconds)
        for route in Move:
            self._move_seconds[route] *= FADING

    def moved(self, route: Move, moved: Moved) -> None:
        """Record moves of blocks."""
        if moved.blocks:
            self._moves[route] = DECAY * self._moves[route] + moved.blocks
            self._move_seconds[route] = DECAY * self._move_seconds[route] + moved.seconds

    @property
    def seconds_per_token(self) -> float | None:
        """Return the cost of one more token in a step; None before any measurement."""
        steps = self._steps
        if not self._is_known:
            return None
        each = steps.each((SPREAD_MIN * steps.mean_tokens) ** 2)
        return each if each is not None and each > 0 else steps.mean_seconds / steps.mean_tokens

    @property
    def seconds_per_step(self) -> float | None:
        """Return the mean time of a step; None before any measurement."""
        return self._steps.mean_seconds if self._is_known else None

    @property
    def _is_known(self) -> bool:
        return self._steps.is_known and self._steps.mean_seconds > 0

    def seconds_per_move(self, route: Move) -> float | None:
        """Return the time of moving one block; None before any measurement."""
        return self._move_seconds[route] / self._moves[route] if self._move_seconds[route] else None

    def move_pays(self, tokens: float, *routes: Move) -> bool:
        """Tell whether moving a block along all these routes costs less than computing its `tokens`."""
        per_token = self.seconds_per_token
        return (
            per_token is None
            or sum(self.seconds_per_move(route) or 0.0 for route in routes) < tokens * per_token
        )
