"""Rows whose tokens come late, because what guides them was (see `LateTokens`).

Such a row stalls: nothing more of it is planned until its token is there and the steps are over that were planned
ahead. Those were void, if the executor had not got the token by then. The block manager names blocks by the tokens
that it is told, once there are slots for them; the late token has one, perhaps, in which nothing was computed. So it
is not told before a step is planned that computes it.
"""

from __future__ import annotations

from dataclasses import dataclass

from pageant.actors.scheduler.plans import Drawn
from pageant.actors.scheduler.running import Running
from pageant.protocol.arrays import Int32Vector


@dataclass
class _Deferral:
    """By which plan, and the token when it is there."""

    plan: int
    token: Drawn | None = None


class Deferrals:
    """Those of the running rows."""

    def __init__(self, running: Running) -> None:
        self._running = running
        self._by_row: dict[int, _Deferral] = {}

    def defer(self, row: int, plan: int) -> None:
        """The token that a plan draws for a row comes late."""
        self._by_row[row] = _Deferral(plan)
        self._running.stall(row)

    def awaits(self, row: int, plan: int) -> bool:
        """Whether a row waits for the token of this plan."""
        found = self._by_row.get(row)
        return found is not None and found.plan == plan and found.token is None

    @property
    def any_awaited(self) -> bool:
        """Whether any row waits for its token."""
        return any(deferral.token is None for deferral in self._by_row.values())

    def arrived(self, row: int, token: Drawn) -> None:
        """It is there, and the row goes on."""
        self._running.arrived(row)
        self._by_row[row].token = token

    def settle(self) -> None:
        """Lets those rows go on that have their tokens, and that no step names."""
        for row, deferral in self._by_row.items():
            if deferral.token is not None and not self._running.is_row_named(row):
                self._running.go_on(row)

    def forget(self, row: int) -> None:
        """The row is given up."""
        self._by_row.pop(row, None)

    def planned(self, rows: Int32Vector) -> list[Drawn]:
        """A step computes these rows. Returns the tokens that the block manager may know of by now."""
        return [self._take(row) for row in self._ready(rows) if not self._running.is_stalled(row)]

    def drew(self, rows: Int32Vector) -> list[Drawn]:
        """A step did compute these rows, for it had got their tokens. Returns those, to be told first."""
        return [self._take(row) for row in self._ready(rows)]

    def _ready(self, rows: Int32Vector) -> list[int]:
        """Those of some rows whose tokens are there."""
        if not self._by_row:
            return []
        waiting = [(row, self._by_row.get(row)) for row in rows.tolist()]
        return [row for row, deferral in waiting if deferral is not None and deferral.token is not None]

    def _take(self, row: int) -> Drawn:
        self._running.go_on(row)
        token = self._by_row.pop(row).token
        assert token is not None, "it is there"
        return token
