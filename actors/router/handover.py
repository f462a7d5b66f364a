"""Decides whether a prompt is computed by another replica than the one that goes on with the output.

Apart, a request waits for a replica that computes prompts, and its blocks are copied. Together, its prompt delays the
outputs that run beside it. Both are seconds.
"""

from __future__ import annotations

from typing import Literal

from pageant.actors.router.candidates import Candidate
from pageant.actors.router.policies import RoutedRequest

Handover = Literal["auto", "always", "never"]

COPY_SHARE = 0.1
"""Seconds that the blocks of a token take to be saved and restored, as a share of those that it takes to compute it."""


def is_apart(
    handover: Handover, request: RoutedRequest, first: Candidate, place: Candidate, block_size: int
) -> bool:
    """Tell whether a request's prompt is computed by `first`, and its output by `place`.

    A prompt of which less than a block is not cached where it goes on is never handed over.
    """
    uncached = request.num_tokens - place.cached_tokens
    if handover == "never" or uncached <= block_size:
        return False
    if handover == "always":
        return True
    delayed = 1 + place.running
    together = place.waiting_tokens * place.seconds_per_token + uncached * place.seconds_per_token * delayed
    computed = request.num_tokens - first.cached_tokens
    apart = (first.waiting_tokens + computed) * first.seconds_per_token
    return apart + COPY_SHARE * uncached * place.seconds_per_token < together
