"""How a request's tokens are drawn and when they end. Part of `Submit`.

Every field is honoured by the default cast. A parameter that is not here is refused by the constructor,
never ignored.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec

from pageant.protocol.errors import BadRequest

STOP_STRINGS_MAX = 64
STOP_LENGTH_MAX = 1024
STOP_TOKEN_IDS_MAX = 1024
SEED_MAX = 2**63 - 1


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sampling parameters, with the names and meanings that users of vLLM know.

    Attributes:
        temperature: 0 is greedy; otherwise logits are divided by it.
        top_k: keep the k likeliest tokens; 0 or -1 keeps all.
        top_p: keep the likeliest tokens that together have at least this probability.
        min_p: drop tokens below this fraction of the likeliest token's probability.
        seed: the same seed gives the same tokens, whatever else runs. Drawn by the frontend if None.
        max_tokens: most tokens to generate; None is as many as fit into `max_model_len`.
        min_tokens: end tokens and stops are not acted on before this many tokens.
        stop: end when one of these strings appears; it is cut off unless `include_stop_str_in_output`.
        stop_token_ids: end when one of these tokens is drawn.
        ignore_eos: do not end at the model's own end tokens.
        skip_special_tokens: leave special tokens out of the text.

    Raises:
        BadRequest: a value out of range; names the parameter, what was found and what is expected.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    max_tokens: int | None = 16
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True

    def __post_init__(self) -> None:
        self._normalise()
        _number("temperature", self.temperature, 0.0, 100.0)
        _number("top_p", self.top_p, 0.0, 1.0, above_low=True)
        _number("min_p", self.min_p, 0.0, 1.0)
        _integer("top_k", self.top_k, -1, 2**31 - 1)
        _integer("min_tokens", self.min_tokens, 0, 2**31 - 1)
        if self.max_tokens is not None:
            _integer("max_tokens", self.max_tokens, 1, 2**31 - 1)
            if self.min_tokens > self.max_tokens:
                raise BadRequest(
                    f"min_tokens is {self.min_tokens}, which is more than max_tokens ({self.max_tokens})",
                    "min_tokens",
                )
        if self.seed is not None:
            _integer("seed", self.seed, 0, SEED_MAX)
        self._check_stops()
        for name in ("ignore_eos", "include_stop_str_in_output", "skip_special_tokens"):
            if not isinstance(getattr(self, name), bool):
                raise BadRequest(f"{name} is {getattr(self, name)!r}; expected true or false", name)

    def _normalise(self) -> None:
        """A single string and lists are taken where tuples are meant."""
        if isinstance(self.stop, str):
            msgspec.structs.force_setattr(self, "stop", (self.stop,))
        elif self.stop is None or isinstance(self.stop, list):
            msgspec.structs.force_setattr(self, "stop", tuple(self.stop or ()))
        if self.stop_token_ids is None or isinstance(self.stop_token_ids, list):
            msgspec.structs.force_setattr(self, "stop_token_ids", tuple(self.stop_token_ids or ()))

    def _check_stops(self) -> None:
        if not isinstance(self.stop, tuple) or not all(isinstance(s, str) for s in self.stop):
            raise BadRequest(f"stop is {self.stop!r}; expected a string or a list of strings", "stop")
        if len(self.stop) > STOP_STRINGS_MAX:
            raise BadRequest(
                f"stop has {len(self.stop)} strings; at most {STOP_STRINGS_MAX} are taken", "stop"
            )
        for index, stop in enumerate(self.stop):
            if not 1 <= len(stop) <= STOP_LENGTH_MAX:
                raise BadRequest(
                    f"stop[{index}] has {len(stop)} characters; expected 1 to {STOP_LENGTH_MAX}", "stop"
                )
        if not isinstance(self.stop_token_ids, tuple):
            raise BadRequest(f"stop_token_ids is {self.stop_token_ids!r}; expected a list", "stop_token_ids")
        if len(self.stop_token_ids) > STOP_TOKEN_IDS_MAX:
            raise BadRequest(
                f"stop_token_ids has {len(self.stop_token_ids)} ids; at most {STOP_TOKEN_IDS_MAX} are taken",
                "stop_token_ids",
            )
        for index, token in enumerate(self.stop_token_ids):
            _integer(f"stop_token_ids[{index}]", token, 0, 2**31 - 1)


def _number(name: str, value: Any, low: float, high: float, *, above_low: bool = False) -> None:
    bounds = f"a number {'above' if above_low else 'from'} {low:g} {'up ' if above_low else ''}to {high:g}"
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadRequest(f"{name} is {value!r}; expected {bounds}", name)
    if not math.isfinite(value) or not low <= value <= high or (above_low and value == low):
        raise BadRequest(f"{name} is {value}; expected {bounds}", name)


def _integer(name: str, value: Any, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise BadRequest(f"{name} is {value!r}; expected a whole number from {low} to {high}", name)
