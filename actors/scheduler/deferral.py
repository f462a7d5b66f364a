"""Rows whose tokens come late, because their masks did (see `LateTokens`).

Such a row stalls: nothing more of it is planned until its token has come and the steps that were planned ahead
are over. Those steps are void unless the executor had the token by then. The block manager hashes blocks by the
tokens that it learns, once there are slots for them. The slot of a late token may hold no KV. The token is
therefore reported only when a step is planned that computes it.
"""

from __future__ import annotations

from dataclasses import dataclass

from pageant.actors.scheduler.plans import SampledTokens
from pageant.actors.scheduler.running import Running
from pageant.protocol.arrays import Int32Vector


@dataclass
class _Deferral:
    """The plan that deferred a token, and the token when it has come."""

    plan: int
    token: SampledTokens | None = None


class Deferrals:
    """Deferred tokens of the running rows. A row is here from `defer` until a step computes its token."""

    def __init__(self, running: Running) -> None:
        self._running = running
        self._by_row: dict[int, _Deferral] = {}

    def defer(self, row: int, plan: int) -> None:
        """Note that the token that a plan samples for a row comes late."""
        self._by_row[row] = _Deferral(plan)
        self._running.stall(row)

    def awaits(self, row: int, plan: int) -> bool:
        """Tell whether a row waits for the token of this plan."""
        found = self._by_row.get(row)
        return found is not None and found.plan == plan and found.token is None

    @property
    def any_awaited(self) -> bool:
        """Tell whether any row waits for its token."""
        return any(deferral.token is None for deferral in self._by_row.values())

    def arrived(self, row: int, token: SampledTokens) -> None:
        """Take a row's late token."""
        self._running.arrived(row)
        self._by_row[row].token = token

    def settle(self) -> None:
        """Let rows go on whose tokens have come and that no step under way names."""
        for row, deferral in self._by_row.items():
            if deferral.token is not None and not self._running.is_row_named(row):
                self._running.go_on(row)

    def forget(self, row: int) -> None:
        """Forget a row that was released."""
        self._by_row.pop(row, None)

    def planned(self, rows: Int32Vector) -> list[SampledTokens]:
        """Return the late tokens that the block manager may learn now that a step computes `rows`, int32 [N]."""
        return [self._take(row) for row in self._ready(rows) if not self._running.is_stalled(row)]

    def computed(self, rows: Int32Vector) -> list[SampledTokens]:
        """Return the late tokens of `rows`, int32 [N], that a step did compute: the executor had them in time.

        They must be reported before the tokens that the step sampled.
        """
        return [self._take(row) for row in self._ready(rows)]

    def _ready(self, rows: Int32Vector) -> list[int]:
        """Return those of `rows` whose late tokens have come."""
        if not self._by_row:
            return []
        waiting = [(row, self._by_row.get(row)) for row in rows.tolist()]
        return [row for row, deferral in waiting if deferral is not None and deferral.token is not None]

    def _take(self, row: int) -> SampledTokens:
        self._running.go_on(row)
        token = self._by_row.pop(row).token
        assert token is not None, "it is there"
        return token
