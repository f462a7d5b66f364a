"""Copies between the device and a store: when each may be made. A core: no I/O, no clock.

A block manager names the last exchange whose plan may still use the blocks. A copy is made once that plan is
computed. It needs no plan of its own, and no step waits for it: nobody uses the blocks until it is answered.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from pageant.protocol.storing import MoveStored

__all__ = ["StoredMoves"]


class StoredMoves:
    """Copies that wait for plans.

    Attributes:
        computed_step: the exchange of the scheduler's last plan that was computed, or will not be.
        any_came: there was ever one.
    """

    def __init__(self) -> None:
        self.computed_step = 0
        self.any_came = False
        self._numbers = itertools.count(1)
        self._waiting: dict[int, MoveStored] = {}

    def add(self, move: MoveStored) -> int:
        """Take in a copy. Return its number, under which `take_due` names it."""
        self.any_came = True
        number = next(self._numbers)
        self._waiting[number] = move
        return number

    def cancel(self, number: int) -> None:
        """Forget a copy, if it is still waiting: whoever asked for it is gone."""
        self._waiting.pop(number, None)

    def take_due(self, scheduler: int, *, has_foreign: bool) -> Iterator[tuple[int, bool]]:
        """Yield the numbers of copies that need not wait any more, and whether each is to be made.

        A copy of a former scheduler is not made: its last plans may never have been computed.

        Args:
            scheduler: the incarnation of the present scheduler.
            has_foreign: steps of former schedulers are not over.
        """
        if has_foreign:
            return
        for number, move in list(self._waiting.items()):
            is_stale = move.scheduler < scheduler
            if is_stale or (move.scheduler == scheduler and move.step <= self.computed_step):
                del self._waiting[number]
                yield number, not is_stale
