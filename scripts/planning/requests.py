"""Requests of a planned load: drawn from lengths and a rate, or those of a recording."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from pageant.protocol.arrays import Int32Vector, int32
from pageant.scripts.loads import Arrivals, Lengths
from pageant.scripts.replay.load import Load

VOCABULARY = 30_000
"""Different token ids of drawn prompts. Two prompts without a common prefix share no block."""


@dataclass(frozen=True, eq=False)
class PlannedRequest:
    """A request of the load."""

    at: float
    """Seconds from the start at which it arrives."""
    prompt: Int32Vector
    """int32 [tokens]."""
    output_tokens: int
    """Tokens of its output, at least one. The scheduler is not told before the output ends."""
    most_tokens: int
    """The bound of its output that the scheduler is told, at least `output_tokens`."""


@dataclass(frozen=True)
class LoadShape:
    """Distributions of a drawn load.

    Attributes:
        arrivals: when requests arrive.
        input_tokens: of a prompt, without its prefix.
        output_tokens: of an output.
        prefix_tokens: that prompts of one prefix share; 0 for none.
        prefixes: how many different ones there are.
    """

    arrivals: Arrivals
    input_tokens: Lengths
    output_tokens: Lengths
    prefix_tokens: int = 0
    prefixes: int = 1

    def draw(self, count: int, seed: int = 0) -> Iterator[PlannedRequest]:
        """Draw so many requests, in order of arrival; each when it is asked for, so that few are in memory."""
        chance, prompts = random.Random(seed), np.random.default_rng(seed)
        prefixes = [self._tokens(prompts, self.prefix_tokens) for _ in range(self.prefixes)]
        for at in itertools.islice(self.arrivals.times(chance), count):
            own = self._tokens(prompts, self.input_tokens.draw(chance))
            output = self.output_tokens.draw(chance)
            prompt = int32(np.concatenate([chance.choice(prefixes), own]))
            yield PlannedRequest(at, prompt, output, self.output_tokens.high)

    @property
    def most_tokens(self) -> int:
        """Return the most tokens that a request can have, prompt and output."""
        return self.prefix_tokens + self.input_tokens.high + self.output_tokens.high

    @staticmethod
    def _tokens(prompts: np.random.Generator, count: int) -> Int32Vector:
        return prompts.integers(1, VOCABULARY, count, dtype=np.int32)


def recorded(load: Load, count: int | None = None, rate: float | None = None) -> Iterator[PlannedRequest]:
    """Yield the requests of a recording that were served, in order of arrival, again and again up to `count`.

    Args:
        count: None for each once.
        rate: requests per second, on which arrivals are stretched evenly; None leaves them as recorded.
    """
    served = [number for number, course in enumerate(load.courses) if course.served and course.token_ids]
    if not served:
        return
    first = load.courses[served[0]].submitted_at
    times = [load.courses[number].submitted_at - first for number in served]
    # A round lasts as long as its requests arrive, with a gap behind the last one.
    round_seconds = times[-1] * len(times) / max(1, len(times) - 1)
    scale = 1.0 if rate is None or not round_seconds else len(times) / rate / round_seconds
    for index in range(len(served) if count is None else count):
        turn, place = divmod(index, len(served))
        course, submit = load.courses[served[place]], load.submits[served[place]]
        output = len(course.token_ids)
        most = submit.params.max_tokens or output
        yield PlannedRequest(
            (turn * round_seconds + times[place]) * scale, submit.prompt_token_ids, output, max(most, output)
        )
