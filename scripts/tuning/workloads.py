"""Workloads of a tune: drawn from a mixture of lengths, or taken from a recording, in parts that are kept apart."""

from __future__ import annotations

import enum
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from pageant.protocol.arrays import int32
from pageant.protocol.checks import expected
from pageant.protocol.errors import BadRequest
from pageant.scripts.loads import Arrivals, Lengths
from pageant.scripts.planning.requests import VOCABULARY, PlannedRequest, recorded
from pageant.scripts.replay.load import Load

FIRST_TOKEN = 10
"""First token id of drawn prompts: those below are often special."""


class Part(enum.IntEnum):
    """Requests that one purpose has for itself."""

    SEARCH = 0
    CHOICE = 1
    CONFIRMATION = 2


class Source(Protocol):
    """Requests of a tune."""

    def requests(self, part: Part, seconds: float, factor: float = 1.0) -> list[PlannedRequest]:
        """Return the requests that arrive in so many seconds, in order, `factor` times as many per second.

        Those of different parts are different. At least one is returned.
        """

    @property
    def rate(self) -> float:
        """Return the requests per second."""


@dataclass(frozen=True)
class Kind:
    """Requests of one kind in a workload."""

    share: float
    """Of the workload's requests; the kinds' add up to 1."""
    input_tokens: Lengths
    output_tokens: Lengths

    def scaled(self, factor: float) -> Kind:
        """Return the kind with lengths times `factor`."""
        return Kind(self.share, _scaled(self.input_tokens, factor), _scaled(self.output_tokens, factor))


@dataclass(frozen=True)
class Workload:
    """Distribution of requests.

    Attributes:
        burstiness: of arrivals, see `Arrivals`.
        prefix_tokens, prefixes: tokens that prompts of one prefix share, and how many prefixes there are.
    """

    kinds: tuple[Kind, ...]
    burstiness: float = 1.0
    prefix_tokens: int = 0
    prefixes: int = 1

    @property
    def most_tokens(self) -> int:
        """Return the most tokens of a request, prompt and output."""
        return self.prefix_tokens + max(one.input_tokens.high + one.output_tokens.high for one in self.kinds)

    def fitted(self, most_tokens: int) -> Workload:
        """Return the workload with shorter requests, where the longest has more than `most_tokens`."""
        if self.most_tokens <= most_tokens:
            return self
        factor = most_tokens / self.most_tokens
        kinds = tuple(one.scaled(factor) for one in self.kinds)
        return replace(self, kinds=kinds, prefix_tokens=int(self.prefix_tokens * factor))


WORKLOADS = {
    "chat": Workload((Kind(1.0, Lengths(32, 512), Lengths(32, 192)),)),
    "mixed": Workload(
        (Kind(0.85, Lengths(32, 128), Lengths(32, 96)), Kind(0.15, Lengths(1024, 1536), Lengths(16, 32)))
    ),
    "bursts": Workload((Kind(1.0, Lengths(32, 512), Lengths(32, 192)),), burstiness=0.1),
    "summaries": Workload((Kind(1.0, Lengths(512, 1536), Lengths(32, 96)),)),
    "agents": Workload((Kind(1.0, Lengths(64, 512), Lengths(32, 128)),), prefix_tokens=1024, prefixes=4),
}
"""Named workloads. Where a model takes fewer tokens, all lengths are scaled down to it."""


def named(name: str) -> Workload:
    """Return a workload of `WORKLOADS`.

    Raises:
        BadRequest: there is none of that name.
    """
    if name not in WORKLOADS:
        raise BadRequest(f"no workload {name!r}; {expected(name, WORKLOADS)}", "workload")
    return WORKLOADS[name]


@dataclass(frozen=True)
class Drawn:
    """Requests drawn from a workload.

    Attributes:
        vocabulary: token ids that prompts are drawn from.
        seed: each part draws from another, made of this.
    """

    workload: Workload
    rate: float
    vocabulary: int = VOCABULARY
    seed: int = 0

    def requests(self, part: Part, seconds: float, factor: float = 1.0) -> list[PlannedRequest]:
        """Draw the requests of a part."""
        chance = random.Random(f"{self.seed}/{part}")
        prompts = np.random.default_rng([self.seed, part])
        workload = self.workload
        prefixes = [self._tokens(prompts, workload.prefix_tokens) for _ in range(workload.prefixes)]
        shares = [one.share for one in workload.kinds]
        found: list[PlannedRequest] = []
        for at in Arrivals(self.rate * factor, workload.burstiness).times(chance):
            if at > seconds and found:
                return found
            kind = chance.choices(workload.kinds, shares)[0]
            own = self._tokens(prompts, kind.input_tokens.draw(chance))
            output = kind.output_tokens.draw(chance)
            prompt = int32(np.concatenate([chance.choice(prefixes), own]))
            found.append(PlannedRequest(at, prompt, output, kind.output_tokens.high))
        return found

    def _tokens(self, prompts: np.random.Generator, count: int) -> np.ndarray:
        return prompts.integers(FIRST_TOKEN, self.vocabulary, count, dtype=np.int32)


class Recorded:
    """Requests of a recording: a third of them for each part, in the order in which they came.

    Args:
        rate: requests per second, on which arrivals are stretched evenly; None leaves them as recorded.

    Raises:
        BadRequest: too few requests were served to their ends.
    """

    def __init__(self, load: Load, rate: float | None = None) -> None:
        found = list(recorded(load))
        if len(found) < len(Part):
            raise BadRequest(
                f"the recording holds {len(found)} requests that were served to their ends; expected at least "
                f"{len(Part)}, so that other requests test than those that are searched with",
                "recording",
            )
        seconds = max(found[-1].at - found[0].at, 1e-3)
        recorded_rate = len(found) / seconds
        self.rate = recorded_rate if rate is None else rate
        self._parts = [_stretched(part, recorded_rate / self.rate) for part in _thirds(found)]

    def requests(self, part: Part, seconds: float, factor: float = 1.0) -> list[PlannedRequest]:
        """Return the requests of a part."""
        found = [replace(one, at=one.at / factor) for one in self._parts[part]]
        return [one for one in found if one.at <= seconds] or found[:1]


def _thirds(requests: Sequence[PlannedRequest]) -> list[Sequence[PlannedRequest]]:
    count = len(requests)
    bounds = [count * number // len(Part) for number in range(len(Part) + 1)]
    return [requests[bounds[part] : bounds[part + 1]] for part in Part]


def _stretched(requests: Sequence[PlannedRequest], factor: float) -> list[PlannedRequest]:
    """Return requests with times from the first one's arrival, times `factor`."""
    return [replace(one, at=(one.at - requests[0].at) * factor) for one in requests]


def _scaled(lengths: Lengths, factor: float) -> Lengths:
    """Return lengths times `factor`, at least one."""
    low, high = (max(1, int(one * factor)) for one in (lengths.low, lengths.high))
    mean = None if lengths.mean is None else lengths.mean * factor
    return Lengths(low, high, mean, lengths.deviation * factor)
