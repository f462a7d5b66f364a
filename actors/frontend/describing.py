"""The statistics of a frontend: counters of one model, and its oldest open requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pageant.actors.frontend.metering import Metering
from pageant.actors.frontend.requests import OpenRequest, OpenSequence
from pageant.protocol.statistics import FrontendStatistics

__all__ = ["describe"]


def describe(
    metering: Metering,
    requests: Sequence[OpenRequest],
    sequences: Mapping[str, OpenSequence],
    now: float,
    open_max: int,
    http: Mapping[str, dict[str, int]],
) -> FrontendStatistics:
    """Return the statistics of one model at `now` seconds.

    Args:
        requests: its open requests, the oldest first; at most `open_max` of them are named.
        sequences: those that have not ended, by wire id.
        http: counters of an HTTP server.
    """
    return FrontendStatistics(
        num_open=len(requests),
        ended=dict(metering.ended),
        errors=dict(metering.errors),
        prompt_tokens=metering.prompt_tokens,
        output_tokens=metering.output_tokens,
        histograms=metering.histograms(),
        open=tuple(
            request.entry(now, [sequences[one] for one in request.wire_ids if one in sequences])
            for request in requests[:open_max]
        ),
        **http,
    )
