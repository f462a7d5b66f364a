"""A scheduling policy that a topology names `coin`: requests are served in an order that their own tokens decide."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

from pageant.actors.scheduler.request import ScheduledRequest

PATIENCE = 2**16  # of the 2**32 places of the draw, for each request that came after it


class Coin:
    """Serves requests in a drawn order, in which whoever waits moves forward.

    The draw is a digest of the prompt, so that a run can be replayed.
    """

    def order(self, request: ScheduledRequest) -> tuple[int, ...]:
        """Return the request's place; the smallest is served first."""
        drawn = zlib.crc32(repr(tuple(request.prompt)).encode())
        return (drawn + PATIENCE * request.arrival, request.arrival)

    def victim(self, running: Sequence[ScheduledRequest]) -> ScheduledRequest:
        """Return the request that loses its blocks: the last one."""
        return running[-1]
