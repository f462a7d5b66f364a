"""Observations of an engine for everybody who looks at it, at most one a second, and none while nobody looks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable

from pageant.protocol.errors import PageantError
from pageant.protocol.statistics import Observation

PERIOD_SECONDS = 1.0


class StatisticsFeed:
    """Observes for all followers together: however many there are, the actors are asked once a period.

    Args:
        observe: asks all actors for their counters.
        clock: seconds; only differences matter.
    """

    def __init__(
        self,
        observe: Callable[[], Awaitable[Observation]],
        clock: Callable[[], float],
        period: float = PERIOD_SECONDS,
    ) -> None:
        self._observe, self._clock, self._period = observe, clock, period
        self._look: asyncio.Task[Observation | None] | None = None
        self._looked_at = clock() - period
        self._is_closed = False

    async def follow(self) -> AsyncGenerator[Observation | None, None]:
        """Yield observations until the feed is closed; None where the observer does not answer."""
        while not self._is_closed:
            if self._look is None or self._look.done():
                self._look = asyncio.create_task(self._next())
            look = self._look
            await asyncio.wait({look})  # shared: a follower that leaves cancels nobody's look
            if self._is_closed or look.cancelled():
                return
            yield look.result()

    async def _next(self) -> Observation | None:
        await asyncio.sleep(self._looked_at + self._period - self._clock())
        self._looked_at = self._clock()
        try:
            return await self._observe()
        except PageantError:  # the observer is down, and starts again
            return None

    async def close(self) -> None:
        """End all followers' streams."""
        self._is_closed = True
        if self._look is not None:
            self._look.cancel()
            await asyncio.wait({self._look})
