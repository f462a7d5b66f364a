"""A scheduling policy of one's own: who asks for least goes first.

cd docs/examples
pageant run --topology shortest_first.yaml "Explain lambda"
pageant conformance policy shortest_first:ShortestFirst
"""

from __future__ import annotations

from collections.abc import Sequence

from pageant.actors.scheduler.request import ScheduledRequest

UNBOUNDED = 1024  # output tokens that a request without max_tokens counts for
PATIENCE = 4.0  # tokens that a request is as good as shorter by, for each one that came after it


class ShortestFirst:
    """Fewest tokens first, which makes the mean waiting time the shortest that it can be.

    Whoever came earlier counts as shorter, so that nobody waits for ever.
    """

    def order(self, request: ScheduledRequest) -> tuple[float, ...]:
        tokens = len(request.prompt) + (request.params.max_tokens or UNBOUNDED)
        return (tokens + PATIENCE * request.arrival, float(request.arrival))

    def victim(self, running: Sequence[ScheduledRequest]) -> ScheduledRequest:
        """Whoever has least to lose: recomputing it costs the fewest tokens."""
        return min(running, key=lambda request: (request.num_computed, -request.arrival))
