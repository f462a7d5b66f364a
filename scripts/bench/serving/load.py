"""Loads: prompts of fixed or drawn lengths, shared prefixes, and conversations.

Everything comes from one seed, so that two servers get the same load.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from pageant.protocol.errors import BadRequest
from pageant.scripts.loads import Lengths

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

    input_tokens: Lengths = field(default_factory=lambda: Lengths(128, 128))
    output_tokens: Lengths = field(default_factory=lambda: Lengths(64, 64))
    turns: Lengths = field(default_factory=lambda: Lengths(1, 1))
    prefix_tokens: int = 0
    prefixes: int = 1
    distinct: int = 0
    token_ids: tuple[int, int] | None = None
    seed: int = 0
    _prefixes: list[list[Any]] = field(default_factory=list, init=False, repr=False, compare=False)

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
