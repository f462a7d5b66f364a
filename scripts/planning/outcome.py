"""Outcome of a planned load: times of each request, and their percentiles."""

from __future__ import annotations

import operator
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from pageant.scripts.spread import Spread


@dataclass(eq=False)
class RequestTimes:
    """Times of one request, in seconds of model time."""

    arrived_at: float
    prompt_tokens: int
    first_at: float | None = None
    last_at: float | None = None
    output_tokens: int = 0
    cached_tokens: int = 0
    replica: str = ""
    refused: bool = False
    """Its end was none that it asked for: no memory can hold it, or the queue was full."""
    gaps: array[float] = field(default_factory=lambda: array("f"))
    """Seconds between two outputs that follow each other."""

    def output(self, times: Sequence[float]) -> None:
        """Add tokens that came at these times, at least one."""
        if self.last_at is not None:
            self.gaps.append(times[0] - self.last_at)
        if self.first_at is None:
            self.first_at = times[0]
        self.gaps.extend(map(operator.sub, times[1:], times))
        self.last_at = times[-1]
        self.output_tokens += len(times)

    @property
    def first_token(self) -> float | None:
        """Return the seconds from arrival to the first token."""
        return None if self.first_at is None else self.first_at - self.arrived_at

    @property
    def per_token(self) -> float | None:
        """Return the seconds per output token after the first; None where there is one token."""
        if self.first_at is None or self.last_at is None or self.output_tokens < 2:
            return None
        return (self.last_at - self.first_at) / (self.output_tokens - 1)

    @property
    def inter_token(self) -> float | None:
        """Return the 99th percentile of the gaps."""
        return float(np.percentile(self.gaps, 99)) if self.gaps else None

    @property
    def whole(self) -> float | None:
        """Return the seconds from arrival to the last token."""
        return None if self.last_at is None else self.last_at - self.arrived_at


@dataclass(frozen=True)
class Outcome:
    """Figures of a run. A spread is None where no request has such a time."""

    replicas: int
    requests: int
    refused: int
    seconds: float
    """From the first arrival to the last token."""
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    first_token: Spread | None
    """Seconds from arrival to the first token."""
    per_token: Spread | None
    """Seconds per output token after the first, by request."""
    inter_token: Spread | None
    """Seconds between two outputs of a request that follow each other, over all of them."""
    whole: Spread | None
    """Seconds from arrival to the last token."""
    busy: float
    """Share of the time in which devices computed, in the mean over replicas."""
    busiest: float
    """The same of the replica that computed most."""
    memory: float
    """The largest share of KV memory that requests of a replica held at a time."""
    preemptions: int
    moves: int = 0
    """How often a request changed its replica, since that lacked memory."""
    handed_over: int = 0
    """Requests whose prompts were computed by a replica for that."""

    @property
    def output_tokens_per_second(self) -> float:
        """Return the throughput."""
        return self.output_tokens / self.seconds if self.seconds else 0.0

    @property
    def hit_rate(self) -> float:
        """Return the share of prompts' tokens that were found cached."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0

    def as_data(self) -> dict[str, Any]:
        """Return the figures as JSON takes them."""
        derived = {"output_tokens_per_second": self.output_tokens_per_second, "hit_rate": self.hit_rate}
        return asdict(self) | derived


def summed_up(
    requests: Sequence[RequestTimes],
    replicas: int,
    busy_seconds: Sequence[float],
    memory: float,
    preemptions: int,
    moves: int = 0,
    handed_over: int = 0,
) -> Outcome:
    """Sum up a run.

    Args:
        busy_seconds: in which each replica's device computed.
        memory: the largest share of a replica's KV memory that was held.
    """
    served = [one for one in requests if not one.refused and one.first_at is not None]
    began = min((one.arrived_at for one in requests), default=0.0)
    seconds = max((one.last_at or 0.0 for one in served), default=began) - began
    gaps = [one.gaps for one in served if one.gaps]
    return Outcome(
        replicas=replicas,
        requests=len(requests),
        refused=len(requests) - len(served),
        seconds=seconds,
        prompt_tokens=sum(one.prompt_tokens for one in served),
        cached_tokens=sum(one.cached_tokens for one in served),
        output_tokens=sum(one.output_tokens for one in served),
        first_token=_spread(one.first_token for one in served),
        per_token=_spread(one.per_token for one in served),
        inter_token=Spread.of(np.concatenate(gaps)) if gaps else None,
        whole=_spread(one.whole for one in served),
        busy=float(np.mean(busy_seconds)) / seconds if seconds else 0.0,
        busiest=max(busy_seconds, default=0.0) / seconds if seconds else 0.0,
        memory=memory,
        preemptions=preemptions,
        moves=moves,
        handed_over=handed_over,
    )


def _spread(values: Iterable[float | None]) -> Spread | None:
    return Spread.of([value for value in values if value is not None])
