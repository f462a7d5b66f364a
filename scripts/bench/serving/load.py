"""Loads: prompts of fixed or drawn lengths, shared prefixes, conversations, and their arrivals.

Everything comes from one seed, so that two servers get the same load.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from pageant.protocol.errors import BadRequest

# Short words of English, each a token or two to most tokenizers.
TEXT = """
time year people way day man thing woman life child world school state family student group country problem hand
part place case week company system program question work number night point home water room mother area money
story fact month lot right study book eye job word business issue side kind head house service friend father power
hour game line end member law car city name team minute idea body back parent face level office door health person
art war history party result change morning
"""
WORDS = TEXT.split()


@dataclass(frozen=True)
class Lengths:
    """Lengths of something: `low` to `high`, evenly; or around `mean`, spread by `deviation`, within those."""

    low: int
    high: int
    mean: float | None = None
    deviation: float = 0.0

    @classmethod
    def parse(cls, text: str, name: str) -> Lengths:
        """Parse `128`, `16:64`, or `normal:256:64` (mean and standard deviation).

        Raises:
            BadRequest: anything else.
        """
        form, *rest = text.split(":")
        try:
            if form == "normal" and len(rest) == 2:
                mean, deviation = float(rest[0]), float(rest[1])
                if mean >= 1 and 0 <= deviation < math.inf and mean < math.inf:
                    return cls(1, round(mean + 4 * deviation), mean, deviation)
            elif len(rest) <= 1 and 1 <= int(form) <= int((rest or [form])[0]):
                return cls(int(form), int((rest or [form])[0]))
        except ValueError:
            pass
        raise BadRequest(f"{name} is {text!r}; expected such as 128, 16:64 or normal:256:64", name)

    def draw(self, rng: random.Random) -> int:
        """Draw a length."""
        if self.mean is None:
            return rng.randint(self.low, self.high)
        return min(self.high, max(self.low, round(rng.gauss(self.mean, self.deviation))))


@dataclass(frozen=True)
class Arrivals:
    """Arrivals of conversations: gaps are drawn from a gamma distribution.

    Attributes:
        rate: conversations per second; infinite is all at once, as far as concurrency allows.
        burstiness: the distribution's shape: 1 is a Poisson process, less is burstier, more is more even.
        ramp_seconds: in which the rate grows evenly from `ramp_from` to `rate`.
    """

    rate: float = math.inf
    burstiness: float = 1.0
    ramp_from: float = 0.0
    ramp_seconds: float = 0.0

    def __post_init__(self) -> None:
        for name, value, least in (
            ("rate", self.rate, 0.0),
            ("burstiness", self.burstiness, 0.0),
            ("ramp_from", self.ramp_from, -1.0),
            ("ramp_seconds", self.ramp_seconds, -1.0),
        ):
            if not value > least or (value == math.inf and name != "rate"):
                raise BadRequest(f"{name} is {value:g}; expected a number above {max(least, 0):g}", name)

    def times(self, rng: random.Random) -> Iterator[float]:
        """Seconds from the start, without end."""
        if self.rate == math.inf:
            yield from itertools.repeat(0.0)
        expected = 0.0  # conversations that are due by then: gaps are drawn in these, and turned to seconds
        while True:
            expected += rng.gammavariate(self.burstiness, 1 / self.burstiness)
            yield self._when(expected)

    def _when(self, expected: float) -> float:
        """The moment by which so many are due: the rate's integral, solved for time."""
        start, slope = self.ramp_from, 0.0
        if self.ramp_seconds:
            slope = (self.rate - start) / self.ramp_seconds
            due = (start + self.rate) / 2 * self.ramp_seconds
            if expected > due:
                return self.ramp_seconds + (expected - due) / self.rate
        else:
            start = self.rate
        if not slope:
            return expected / start
        return (math.sqrt(start * start + 2 * slope * expected) - start) / slope


@dataclass(frozen=True)
class Turn:
    """A user's turn, and how many tokens are to answer it. `prompt` is text, or token ids."""

    prompt: str | list[int]
    output_tokens: int


@dataclass(frozen=True)
class Load:
    """Requests of a load.

    Attributes:
        input_tokens: of each turn's prompt, the shared prefix not counted (words, where prompts are text).
        turns: of a conversation; each sends everything before it again.
        prefix_tokens: that prompts begin with; one of `prefixes` different ones.
        distinct: conversations before they repeat; 0 is never.
        token_ids: first and last id that prompts are drawn from; None is text.
    """

    input_tokens: Lengths = Lengths(128, 128)
    output_tokens: Lengths = Lengths(64, 64)
    turns: Lengths = Lengths(1, 1)
    prefix_tokens: int = 0
    prefixes: int = 1
    distinct: int = 0
    token_ids: tuple[int, int] | None = None
    seed: int = 0
    _prefixes: list[list[Any]] = field(default_factory=list, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name in ("prefix_tokens", "distinct"):
            if getattr(self, name) < 0:
                raise BadRequest(f"{name} is {getattr(self, name)}; expected at least 0", name)
        if self.prefixes < 1:
            raise BadRequest(f"prefixes is {self.prefixes}; expected at least 1", "prefixes")
        rng = random.Random(f"{self.seed}/prefixes")
        if self.prefix_tokens:
            self._prefixes.extend(self._tokens(rng, self.prefix_tokens) for _ in range(self.prefixes))

    def conversation(self, number: int) -> list[Turn]:
        """The turns of one of them."""
        if self.distinct:
            number %= self.distinct
        rng = random.Random(f"{self.seed}/{number}")
        turns = []
        for index in range(self.turns.draw(rng)):
            tokens = self._tokens(rng, self.input_tokens.draw(rng))
            if index == 0 and self._prefixes:
                tokens = rng.choice(self._prefixes) + tokens
            prompt = tokens if self.token_ids is not None else " ".join(tokens)
            turns.append(Turn(prompt, self.output_tokens.draw(rng)))
        return turns

    def _tokens(self, rng: random.Random, count: int) -> list[Any]:
        if self.token_ids is None:
            return rng.choices(WORDS, k=count)
        low, high = self.token_ids
        return [rng.randint(low, high) for _ in range(count)]
