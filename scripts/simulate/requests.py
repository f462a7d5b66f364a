"""Requests of simulated users."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from pageant.actors.executor.simulated_model import FIRST_TOKEN, NUM_TOKENS
from pageant.protocol.sampling import SamplingParams
from pageant.protocol.structured_outputs import StructuredOutputsParams
from pageant.scripts.simulate.answers import tokenization
from pageant.scripts.simulate.topology import MAX_MODEL_LEN

LONG_TOKENS = 90  # of a request whose user leaves
GUIDES = (
    StructuredOutputsParams(
        choice=("once upon a time", "the queue of blocks", "there was a stream of streams")
    ),
    StructuredOutputsParams(regex="(ab|ba|abba){3,12}"),
    StructuredOutputsParams(regex="[0-9]{2,12}"),
    StructuredOutputsParams(
        json='{"type": "object", "properties": {"n": {"type": "integer"}, "of": {"enum": ["a", "bee"]}}}',
        disable_any_whitespace=True,
        disable_additional_properties=True,
    ),
)
WORDS = ("once", "upon", "a", "time", "there", "was", "the", "queue", "of", "stream", "blocks", "and")


@dataclass(eq=False)
class Wanted:
    """A request as its user makes it.

    Attributes:
        frontend: whose user it is.
        at: when, in seconds.
        abort_after: tokens after which the user leaves; None stays to the end.
    """

    name: str
    frontend: str
    at: float
    prompt: str | list[int]
    params: SamplingParams
    settings: dict[str, Any] = field(default_factory=dict)
    abort_after: int | None = None


def draw_requests(random: Random, frontends: list[str], count: int, seconds: float) -> list[Wanted]:
    """Requests of every kind, some of which begin alike."""
    stem = [random.randrange(FIRST_TOKEN, 2000) for _ in range(60)]
    found = []
    for number in range(count):
        params = _draw_params(random, number)
        wanted = Wanted(
            name=f"request-{number}",
            frontend=random.choice(frontends),
            at=random.uniform(0, seconds),
            prompt=_draw_prompt(random, stem, MAX_MODEL_LEN - (params.max_tokens or 0) - 8),
            params=params,
            settings={"priority": random.randrange(3), "tenant": random.choice(("", "a", "b"))},
        )
        if random.random() < 0.1:
            wanted.settings["deadline"] = random.uniform(0.05, 2.0)
        if wanted.params.max_tokens == LONG_TOKENS:
            wanted.abort_after = random.randrange(0, 12)
        if random.random() < 0.1:
            wanted.settings["cache_salt"] = "salt"
        found.append(wanted)
    return sorted(found, key=lambda wanted: wanted.at)


def _draw_prompt(random: Random, stem: list[int], longest: int) -> str | list[int]:
    if random.random() < 0.25:
        return " ".join(random.choice(WORDS) for _ in range(random.randint(1, 8)))
    shared = stem[: random.choice((0, 8, 16, 33, 48))]
    own = [random.randrange(FIRST_TOKEN, 2000) for _ in range(random.randint(1, 30))]
    return (shared + own)[:longest]


def _draw_params(random: Random, number: int) -> SamplingParams:
    """Each kind comes by turns, so that every run has some of each."""
    common: dict[str, Any] = {
        "temperature": random.choice((0.0, 0.8)),
        "seed": random.randrange(2**31),
        "max_tokens": random.choice((1, 3, 12, 16, 20, 30, LONG_TOKENS)),
    }
    # Numbers that are exact, so that the order of additions is of no account.
    bias = {token: random.choice((-4.0, -0.5, 2.0)) for token in _some_ids(random, 5)}
    penalties = {
        "repetition_penalty": random.choice((0.5, 1.0, 2.0)),
        "frequency_penalty": random.choice((-0.5, 0.0, 1.0)),
        "presence_penalty": random.choice((0.0, 0.5, 2.0)),
    }
    guide = {"structured_outputs": random.choice(GUIDES)}
    kinds: tuple[Callable[[], dict[str, Any]], ...] = (
        lambda: {},
        lambda: {"n": random.randint(2, 3), "temperature": 0.8},
        lambda: penalties,
        lambda: guide,
        lambda: {"stop": _draw_stops(random)},
        lambda: {"logprobs": random.randrange(3), **random.choice(({}, penalties, {"logit_bias": bias}))},
        lambda: {
            "stop_token_ids": _some_ids(random, 3),
            "min_tokens": min(common["max_tokens"], random.choice((0, 0, 1, 3))),
        },
        lambda: {"logprobs": 1, "prompt_logprobs": 1},
        lambda: guide | random.choice(({}, penalties, {"logprobs": 1}, {"n": 2, "temperature": 0.8})),
        lambda: {"detokenize": False},
        lambda: {"stop": _draw_stops(random), "include_stop_str_in_output": True},
        lambda: {"allowed_token_ids": _some_ids(random, 5)},
        lambda: {"n": 2, "temperature": 0.8, **penalties},
    )
    return SamplingParams(**{**common, **kinds[number % len(kinds)]()})


def _some_ids(random: Random, count: int) -> tuple[int, ...]:
    """Return some token ids. Of an alphabet of two, only the first is ever among them."""
    others = random.sample(range(FIRST_TOKEN + 2, FIRST_TOKEN + NUM_TOKENS), count - 1)
    return (FIRST_TOKEN, *others)


def _draw_stops(random: Random) -> tuple[str, ...]:
    ids = random.sample(range(FIRST_TOKEN, FIRST_TOKEN + NUM_TOKENS), 3)
    return tuple(tokenization().decode([token]).strip() or "q" for token in ids)
