"""Parameters of sampling, and of a request's end. Part of `Submit`.

Every field is honoured by the default cast. The constructor refuses an unknown parameter; none is ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Literal

import msgspec

from pageant.protocol.checks import (
    TOKEN_ID_MAX,
    check_encodable,
    check_integer,
    check_number,
    check_strings,
    check_token_ids,
    to_builtin,
)
from pageant.protocol.errors import BadRequest
from pageant.protocol.logprobs import ALL
from pageant.protocol.parameters import Parameters
from pageant.protocol.structured_outputs import StructuredOutputsParams

STOP_STRINGS_MAX = 64
STOP_LENGTH_MAX = 1024
STOP_TOKEN_IDS_MAX = 1024
LOGIT_BIAS_MAX = 1024
ALLOWED_TOKEN_IDS_MAX = 65_536
TRACE_MAX = 1 << 20
LOGPROB_TOKEN_IDS_MAX = 4096
SEED_MIN, SEED_MAX = -(2**63), 2**63 - 1
NO_SEED = -1
NO_BUDGET = -1
N_MAX = 1024
BAD_WORDS_MAX = 256
BAD_WORD_LENGTH_MAX = 256
# A request with a lower temperature is greedy (see `pageant.kernels.sampling`).
GREEDY_TEMPERATURE = 1e-5
# Characters of the arguments, written out.
EXTRA_ARGS_MAX = 65_536
Scalar = bool | int | float | str | None


class RequestOutputKind(Enum):
    """Content of a request's outputs: everything so far, only what is new, or a single output at the end."""

    CUMULATIVE = 0
    DELTA = 1
    FINAL_ONLY = 2


_FLAGS = (
    *("ignore_eos", "include_stop_str_in_output", "skip_special_tokens"),
    *("detokenize", "spaces_between_special_tokens"),
)
_PLAIN = (
    *("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty"),
    *("logit_bias", "stop", "bad_words", "extra_args"),
)
_ENCODED = ("stop", "bad_words", "extra_args", "structured_outputs")
"""Parameters that may hold a value that cannot travel in a message."""


class SamplingParams(Parameters, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sampling parameters, with the names and meanings that users of vLLM know.

    Attributes:
        temperature: logits are divided by it; 0 is greedy.
        top_k: keep the k likeliest tokens; 0 or -1 keeps all.
        top_p: keep the likeliest tokens that together have at least this probability.
        min_p: drop tokens below this fraction of the likeliest token's probability.
        presence_penalty: subtracted from the logit of each token that the output holds.
        frequency_penalty: subtracted from a token's logit once for each occurrence in the output.
        repetition_penalty: divides positive logits of tokens that the prompt or the output holds, and multiplies
            negative ones; 1 is off.
        logit_bias: added to the logits of some tokens, by token id.
        allowed_token_ids: sample only these tokens; None is all. If only end tokens and `stop_token_ids` are allowed,
            `min_tokens` does not keep them from being sampled.
        seed: the same seed gives the same tokens, whatever else runs. The frontend draws one if it is None or -1.
        max_tokens: the most tokens to generate; None is as many as fit into `max_model_len`.
        min_tokens: end tokens and stops have no effect before this many tokens.
        stop: end when one of these strings appears; it is cut off unless `include_stop_str_in_output`.
        stop_token_ids: end when one of these tokens is sampled; its text is left out, as that of an end token is.
        ignore_eos: do not end at the model's own end tokens.
        skip_special_tokens: leave special tokens out of the text.
        n: the number of samples to return. They share the prompt's blocks; sample 0 is what n=1 would return.
        best_of: the number of samples to generate; the n with the highest `cumulative_logprob` are returned.
        logprobs: return the log-probability of each sampled token and of this many likeliest tokens at its place; -1
            is all. The engine's `max_logprobs` bounds it.
        prompt_logprobs: return the same for the prompt's tokens. The prompt is then computed, not taken from the cache.
        logprob_token_ids: at each place return the log-probabilities of these tokens instead of the likeliest, and of
            the sampled token, as with `logprobs=0`.
        bad_words: texts that must not appear: their last token is not sampled where it would complete one.
        truncate_prompt_tokens: keep this many of the prompt's tokens; -1 is as many as leave room for `max_tokens`.
        truncation_side: the end that `truncate_prompt_tokens` cuts off: left (or None) keeps the last tokens, right
            the first.
        detokenize: turn tokens into text; stop strings need it.
        spaces_between_special_tokens: False drops the blank that a decoder puts between two special tokens.
        output_kind: the content of each output.
        extra_args: arguments for logits processors of your own.
        structured_outputs: a constraint on the output; a mapping of its fields is taken too. The request ends with
            `stop` when the output is complete, whatever `min_tokens` and `ignore_eos` are.
        thinking_token_budget: the most tokens of the model's reasoning; then the mark that ends it is forced. None and
            -1 set no bound. It needs a model that marks its reasoning.
        trace_decode_token_ids: the output, token by token, to have it scored: nothing is sampled. It sets
            `max_tokens`, and nothing else ends it.

    Raises:
        BadRequest: a value is out of range; names the parameter, what was found and what is expected.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: tuple[int, ...] | None = None
    seed: int | None = None
    max_tokens: int | None = 16
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    n: int = 1
    best_of: int | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    bad_words: tuple[str, ...] = ()
    truncate_prompt_tokens: int | None = None
    detokenize: bool = True
    spaces_between_special_tokens: bool = True
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE
    extra_args: dict[str, Scalar | tuple[Scalar, ...]] | None = None
    structured_outputs: StructuredOutputsParams | None = None
    truncation_side: Literal["left", "right"] | None = None
    thinking_token_budget: int | None = None
    logprob_token_ids: tuple[int, ...] | None = None
    trace_decode_token_ids: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        self._normalise()
        check_number("temperature", self.temperature, 0.0, 100.0)
        check_number("top_p", self.top_p, 0.0, 1.0, above_low=True)
        check_number("min_p", self.min_p, 0.0, 1.0)
        check_number("presence_penalty", self.presence_penalty, -2.0, 2.0)
        check_number("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        check_number("repetition_penalty", self.repetition_penalty, 0.0, 100.0, above_low=True)
        self._check_bias()
        self._check_allowed()
        check_integer("top_k", self.top_k, -1, 2**31 - 1)
        check_integer("min_tokens", self.min_tokens, 0, 2**31 - 1)
        if self.max_tokens is not None:
            check_integer("max_tokens", self.max_tokens, 1, 2**31 - 1)
            if self.min_tokens > self.max_tokens:
                raise BadRequest(
                    f"min_tokens is {self.min_tokens}, which is more than max_tokens ({self.max_tokens})",
                    "min_tokens",
                )
        if self.seed is not None:
            check_integer("seed", self.seed, SEED_MIN, SEED_MAX)
        self._check_stops()
        self._check_samples()
        self._check_outputs()
        self._check_trace()
        for name in _ENCODED:
            if getattr(self, name):
                check_encodable(name, getattr(self, name))
        for name in _FLAGS:
            if not isinstance(getattr(self, name), bool):
                raise BadRequest(f"{name} is {getattr(self, name)!r}; expected true or false", name)

    @property
    def has_penalties(self) -> bool:
        """Tell whether earlier tokens change the logits of the next one."""
        return bool(self.presence_penalty or self.frequency_penalty) or self.repetition_penalty != 1

    def end_tokens(self, of_model: tuple[int, ...]) -> tuple[int, ...]:
        """Return the tokens that end an output: the model's, unless they are ignored, and the request's own."""
        return (*(() if self.ignore_eos else of_model), *self.stop_token_ids)

    @property
    def num_sequences(self) -> int:
        """Return the number of samples to generate."""
        return self.n if self.best_of is None else self.best_of

    def _normalise(self) -> None:
        """Convert fields to their declared types: single strings and lists to tuples, mappings to dicts,
        subtypes to Python's own.
        """
        for name in _PLAIN:
            value = getattr(self, name)
            if (made := to_builtin(value)) is not value:
                msgspec.structs.force_setattr(self, name, made)
        if isinstance(self.stop, str):
            msgspec.structs.force_setattr(self, "stop", (self.stop,))
        elif self.stop is None or isinstance(self.stop, list):
            msgspec.structs.force_setattr(self, "stop", tuple(self.stop or ()))
        if self.bad_words is None or isinstance(self.bad_words, list):
            msgspec.structs.force_setattr(self, "bad_words", tuple(self.bad_words or ()))
        if self.stop_token_ids is None or isinstance(self.stop_token_ids, list):
            msgspec.structs.force_setattr(self, "stop_token_ids", tuple(self.stop_token_ids or ()))
        if isinstance(self.allowed_token_ids, list):
            msgspec.structs.force_setattr(self, "allowed_token_ids", tuple(self.allowed_token_ids))
        if isinstance(self.logit_bias, Mapping):
            msgspec.structs.force_setattr(self, "logit_bias", dict(self.logit_bias))
        if isinstance(self.logprob_token_ids, list | tuple):
            listed = tuple(self.logprob_token_ids)
            # Those that are named twice are counted once, later; what is no id may not be hashable.
            check_token_ids("logprob_token_ids", listed, len(listed))
            listed = tuple(dict.fromkeys(listed))
            msgspec.structs.force_setattr(self, "logprob_token_ids", listed)
        if self.logprob_token_ids is not None and self.logprobs is None:
            msgspec.structs.force_setattr(self, "logprobs", 0)
        self._normalise_trace()
        if self.seed == NO_SEED:
            msgspec.structs.force_setattr(self, "seed", None)
        if self.thinking_token_budget == NO_BUDGET:
            msgspec.structs.force_setattr(self, "thinking_token_budget", None)

    def _normalise_trace(self) -> None:
        """Have an output that is given end with its last token, and nowhere before."""
        if isinstance(self.trace_decode_token_ids, list):
            msgspec.structs.force_setattr(self, "trace_decode_token_ids", tuple(self.trace_decode_token_ids))
        if not isinstance(self.trace_decode_token_ids, tuple) or not self.trace_decode_token_ids:
            return
        ends = {
            "max_tokens": len(self.trace_decode_token_ids),
            "min_tokens": 0,
            "stop": (),
            "stop_token_ids": (),
        }
        for name, value in {**ends, "ignore_eos": True}.items():
            msgspec.structs.force_setattr(self, name, value)

    def _check_trace(self) -> None:
        if self.trace_decode_token_ids is None:
            return
        check_token_ids("trace_decode_token_ids", self.trace_decode_token_ids, TRACE_MAX)
        if not self.trace_decode_token_ids:
            raise BadRequest(
                "trace_decode_token_ids is empty; expected at least one token id, or None",
                "trace_decode_token_ids",
            )
        for name, neutral in (
            ("structured_outputs", None),
            ("thinking_token_budget", None),
            ("bad_words", ()),
        ):
            if getattr(self, name) != neutral:
                raise BadRequest(
                    f"{name} is given beside trace_decode_token_ids; expected one of them: nothing is sampled",
                    name,
                )
        if self.num_sequences != 1:
            raise BadRequest(
                f"n is {self.num_sequences}; expected 1 with trace_decode_token_ids, of which all samples are alike",
                "n",
            )

    def _check_samples(self) -> None:
        check_integer("n", self.n, 1, N_MAX)
        if self.best_of is not None:
            check_integer("best_of", self.best_of, 1, N_MAX)
            if self.best_of < self.n:
                raise BadRequest(f"best_of is {self.best_of}, which is less than n ({self.n})", "best_of")
        if self.num_sequences > 1 and self.temperature < GREEDY_TEMPERATURE:
            name = "n" if self.n > 1 else "best_of"
            raise BadRequest(
                f"{name} is {getattr(self, name)}; expected 1 with temperature 0, where all samples are alike",
                name,
            )

    def _check_outputs(self) -> None:
        for name in ("logprobs", "prompt_logprobs"):
            if getattr(self, name) is not None:
                check_integer(name, getattr(self, name), ALL, TOKEN_ID_MAX)
        if self.logprob_token_ids is not None:
            check_token_ids("logprob_token_ids", self.logprob_token_ids, LOGPROB_TOKEN_IDS_MAX)
            if not self.logprob_token_ids:
                raise BadRequest(
                    "logprob_token_ids is empty; expected at least one token id, or None", "logprob_token_ids"
                )
        check_strings("bad_words", self.bad_words, BAD_WORDS_MAX, BAD_WORD_LENGTH_MAX)
        if self.truncate_prompt_tokens is not None:
            check_integer("truncate_prompt_tokens", self.truncate_prompt_tokens, -1, TOKEN_ID_MAX)
            if not self.truncate_prompt_tokens:
                raise BadRequest(
                    "truncate_prompt_tokens is 0; expected -1, or at least 1", "truncate_prompt_tokens"
                )
        if self.truncation_side not in (None, "left", "right"):
            raise BadRequest(
                f"truncation_side is {self.truncation_side!r:.80}; expected 'left' or 'right'",
                "truncation_side",
            )
        if self.thinking_token_budget is not None:
            check_integer("thinking_token_budget", self.thinking_token_budget, -1, 2**31 - 1)
        if self.extra_args is not None and (
            not isinstance(self.extra_args, dict) or len(repr(self.extra_args)) > EXTRA_ARGS_MAX
        ):
            raise BadRequest(
                f"extra_args is {self.extra_args!r:.80}; expected a mapping of at most {EXTRA_ARGS_MAX} characters",
                "extra_args",
            )
        try:
            if self.extra_args is not None:
                msgspec.convert(self.extra_args, dict[str, Scalar | tuple[Scalar, ...]], strict=True)
        except msgspec.ValidationError as error:
            raise BadRequest(f"extra_args: {error}", "extra_args") from None
        if self.stop and self.detokenize is False:
            raise BadRequest("stop needs text to be found in; expected detokenize to be true", "stop")
        if isinstance(self.structured_outputs, dict):
            asked = StructuredOutputsParams.of(self.structured_outputs)
            msgspec.structs.force_setattr(self, "structured_outputs", asked)
        if not isinstance(self.structured_outputs, StructuredOutputsParams | None):
            raise BadRequest(
                f"structured_outputs is a {type(self.structured_outputs).__name__}; expected StructuredOutputsParams",
                "structured_outputs",
            )
        if not isinstance(self.output_kind, RequestOutputKind):
            raise BadRequest(
                f"output_kind is {self.output_kind!r}; expected a RequestOutputKind", "output_kind"
            )

    def _check_stops(self) -> None:
        check_strings("stop", self.stop, STOP_STRINGS_MAX, STOP_LENGTH_MAX, "a string or a list of strings")
        check_token_ids("stop_token_ids", self.stop_token_ids, STOP_TOKEN_IDS_MAX)

    def _check_bias(self) -> None:
        if self.logit_bias is None:
            return
        if not isinstance(self.logit_bias, dict):
            raise BadRequest(
                f"logit_bias is {self.logit_bias!r}; expected a mapping from token ids to numbers",
                "logit_bias",
            )
        if len(self.logit_bias) > LOGIT_BIAS_MAX:
            raise BadRequest(
                f"logit_bias has {len(self.logit_bias)} entries; at most {LOGIT_BIAS_MAX} are taken",
                "logit_bias",
            )
        for token, bias in self.logit_bias.items():
            check_integer(f"logit_bias[{token!r}]: the token id", token, 0, TOKEN_ID_MAX, "logit_bias")
            check_number(f"logit_bias[{token}]", bias, -100.0, 100.0)

    def _check_allowed(self) -> None:
        if self.allowed_token_ids is None:
            return
        check_token_ids("allowed_token_ids", self.allowed_token_ids, ALLOWED_TOKEN_IDS_MAX)
        if not self.allowed_token_ids:
            raise BadRequest(
                "allowed_token_ids is empty; expected at least one token id, or None", "allowed_token_ids"
            )
