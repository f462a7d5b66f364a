"""`SamplingParams` as users hold it: vLLM's names in vLLM's order, to be changed and cloned until a request begins."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pageant.actors.client.vllm_names.requests import SAMPLING
from pageant.actors.client.vllm_names.rows import Kind
from pageant.protocol import sampling
from pageant.protocol.errors import BadRequest
from pageant.protocol.parameters import MutableParameters
from pageant.protocol.sampling import RequestOutputKind
from pageant.protocol.structured_outputs import StructuredOutputsParams

FROZEN = frozenset(sampling.SamplingParams.__struct_fields__)
NOT_TAKEN = tuple(row for row in SAMPLING.values() if row.kind is Kind.NOT_YET and row.name not in FROZEN)
_LISTS = ("stop", "stop_token_ids", "bad_words")


class SamplingParams(MutableParameters):
    """Parameters of a request's sampling and of its end.

    The parameters are those of `pageant.protocol.sampling.SamplingParams`, which documents each. Values are
    checked when the object is made and when a request begins with it. Later changes to the object do not change
    that request. Parameters of vLLM's that are not there are accepted where they ask for nothing;
    docs/from-vllm.md lists them.

    Raises:
        BadRequest: a value is out of range, or a parameter is unknown; names the parameter.
    """

    n: int = 1
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    watermarking: bool | None = None
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: str | Sequence[str] | None = None
    stop_token_ids: Sequence[int] | None = None
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    prompt_logprob_token_ids: Any = None
    prompt_logprob_start: int | None = None
    logprob_token_ids: Sequence[int] | None = None
    flat_logprobs: bool = False
    detokenize: bool = True
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE
    stream_interval: int | None = None
    skip_clone: bool = False
    output_text_buffer_length: int = 0
    structured_outputs: StructuredOutputsParams | Mapping[str, Any] | None = None
    logit_bias: Mapping[int, float] | None = None
    allowed_token_ids: Sequence[int] | None = None
    extra_args: Mapping[str, Any] | None = None
    bad_words: Sequence[str] | None = None
    skip_reading_prefix_cache: bool | None = None
    thinking_token_budget: int | None = None
    repetition_detection: Any = None
    routed_experts_prompt_start: int = 0
    trace_decode_token_ids: Sequence[int] | None = None
    # What vLLM has not, or had.
    best_of: int | None = None
    truncate_prompt_tokens: int | None = None
    truncation_side: Literal["left", "right"] | None = None
    guided_decoding: StructuredOutputsParams | Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        for name in ("logprobs", "prompt_logprobs"):
            if getattr(self, name) is True:
                setattr(self, name, 1)
        if self.guided_decoding is not None:
            self.structured_outputs, self.guided_decoding = self.guided_decoding, None
        frozen = self.frozen()
        for name in _LISTS:
            setattr(self, name, list(getattr(frozen, name)))
        self.seed, self.structured_outputs = frozen.seed, frozen.structured_outputs

    def frozen(self) -> sampling.SamplingParams:
        """The parameters as a request takes them, which nothing changes any more.

        Raises:
            BadRequest: a value out of range.
        """
        for row in NOT_TAKEN:
            value = getattr(self, row.name)
            if value is not None and not row.is_neutral(value):
                raise BadRequest(f"{row.name}: {row.refusal(value)}", row.name)
        return sampling.SamplingParams(**{name: getattr(self, name) for name in FROZEN})

    def clone(self) -> SamplingParams:
        """A copy that shares nothing with this."""
        return copy.deepcopy(self)

    def __repr__(self) -> str:
        fields = (name for name in type(self).__struct_fields__ if name in FROZEN)
        return f"SamplingParams({', '.join(f'{name}={getattr(self, name)!r}' for name in fields)})"

    @classmethod
    def of(cls, params: sampling.SamplingParams) -> SamplingParams:
        """The same parameters, to be changed."""
        return cls(**{name: getattr(params, name) for name in FROZEN})

    @classmethod
    def from_optional(cls, **given: Any) -> SamplingParams:
        """Parameters of which None stands for what is not given, and token ids of `logit_bias` may be texts."""
        taken = {name: value for name, value in given.items() if value is not None or name == "max_tokens"}
        if isinstance(bias := taken.get("logit_bias"), Mapping):
            taken["logit_bias"] = _bias(bias)
        return cls(**taken)

    @property
    def num_logprobs(self) -> int | None:
        """Return how many of the likeliest tokens are reported at each place; None is none."""
        return self.logprobs


def _bias(given: Mapping[Any, Any]) -> dict[int, float]:
    found = {}
    for token, bias in given.items():
        try:
            found[int(token)] = min(100.0, max(-100.0, bias))
        except (TypeError, ValueError):
            raise BadRequest(
                f"logit_bias has {token!r:.80}: {bias!r:.80}; expected a token id: a number", "logit_bias"
            ) from None
    return found


AnySamplingParams = SamplingParams | sampling.SamplingParams


def frozen(params: object) -> object:
    """Parameters as a request takes them; anything else as it is."""
    return params.frozen() if isinstance(params, SamplingParams) else params


__all__ = ["AnySamplingParams", "SamplingParams", "frozen"]
