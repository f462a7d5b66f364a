"""Fields that requests for completions, for chats and for responses share."""

from __future__ import annotations

from typing import Any, Literal, Self

import msgspec

from pageant.actors.frontend.prompts import RequestSettings, check_settings
from pageant.actors.http.chat.request import params_of
from pageant.actors.http.chat.structure import ResponseFormat, Structure, StructuredOutputs, asked_for
from pageant.actors.http.defaults import RequestDefaults
from pageant.actors.http.tenants import tenant_of
from pageant.actors.parsers.formats import NO_FORMATS, Formats
from pageant.protocol.errors import BadRequest
from pageant.protocol.sampling import SamplingParams, Scalar

CHOICES_MAX = 128  # of one request, over all its prompts


class StreamOptions(msgspec.Struct, kw_only=True):
    """`include_usage`: end the stream with a chunk that has no choices but the usage.
    `continuous_usage_stats`: and tell it with every chunk before.
    """

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class SamplingFields(msgspec.Struct, kw_only=True):
    """Fields that requests for completions, chats and responses share, with one meaning. None is the default of the
    checkpoint's generation_config.json, or of `SamplingParams`.
    """

    model: str | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: tuple[int, ...] | None = None
    bad_words: tuple[str, ...] | None = None
    seed: int | None = None
    stop: str | tuple[str, ...] | None = None
    stop_token_ids: tuple[int, ...] | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    truncate_prompt_tokens: int | None = None
    truncation_side: Literal["left", "right"] | None = None
    structured_outputs: StructuredOutputs | None = None
    thinking_token_budget: int | None = None
    vllm_xargs: dict[str, Scalar | tuple[Scalar, ...]] | None = None
    priority: int | None = None
    cache_salt: str | None = None
    deadline: float | None = None


class Generation(SamplingFields, kw_only=True):
    """Fields that requests for completions and for chats share."""

    n: int | None = None
    best_of: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    prompt_logprobs: int | None = None
    logprob_token_ids: tuple[int, ...] | None = None
    response_format: ResponseFormat | None = None
    request_id: str | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    echo: bool | None = None
    prompt_embeds: str | list[str] | None = None
    use_beam_search: bool | None = None
    length_penalty: float | None = None
    early_stopping: bool | Literal["never"] | None = None
    user: str | None = None

    def max_output_tokens(self, default: int | None) -> int | None:
        """The most tokens of an answer; None is as many as fit."""
        return default if self.max_tokens is None else self.max_tokens

    def num_logprobs(self) -> int | None:
        """Return how many likely tokens to report at each place; None reports no log-probabilities."""
        raise NotImplementedError

    def sampling_params(
        self, defaults: SamplingParams, max_tokens: int | None, num_prompts: int = 1
    ) -> SamplingParams:
        """Return the sampling parameters of the request.

        Args:
            defaults: the values of fields that the request leaves out.
            max_tokens: the default length of its answer.

        Raises:
            BadRequest: a value is out of range.
        """
        given: dict[str, Any] = {
            name: getattr(self, name) for name in _SAMPLED if getattr(self, name) is not None
        }
        given |= {"max_tokens": self.max_output_tokens(max_tokens), "logprobs": self.num_logprobs()}
        params = params_of(given | {"extra_args": self.vllm_xargs or None}, defaults)
        self._check(params, num_prompts)
        return params

    def _check(self, params: SamplingParams, num_prompts: int) -> None:
        if self.logprob_token_ids is not None and self.num_logprobs() is None:
            raise BadRequest(
                "logprob_token_ids is given; expected logprobs to be asked for with it", "logprob_token_ids"
            )
        name = "n" if self.best_of is None else "best_of"
        if params.num_sequences * num_prompts > CHOICES_MAX:
            raise BadRequest(
                f"{name} is {params.num_sequences}, which for {num_prompts} prompts is more than the "
                f"{CHOICES_MAX} choices that one request may have",
                name,
            )
        if self.stream and params.num_sequences > params.n:
            raise BadRequest(
                f"best_of is {params.num_sequences}; with stream expected n, since the best are known at the end",
                "best_of",
            )
        if self.stream and params.prompt_logprobs is not None:
            raise BadRequest(
                "prompt_logprobs cannot be streamed; expected stream to be false", "prompt_logprobs"
            )
        if self.stream_options is not None and not self.stream:
            raise BadRequest("stream_options is given; expected stream to be true with it", "stream_options")

    def structure(self) -> Structure:
        """Return the constraint on the answer's text.

        Raises:
            BadRequest: the constraint makes no sense.
        """
        return asked_for(self.response_format, self.structured_outputs)

    def settings(self) -> RequestSettings:
        """Return the settings of the request besides its prompt and its parameters.

        Raises:
            BadRequest: a value is out of range.
        """
        return check_settings(
            {
                "priority": self.priority or 0,
                "tenant": tenant_of(self.user),
                "cache_salt": self.cache_salt,
                "deadline": self.deadline,
            }
        )

    def fields_without_effect(self, formats: Formats = NO_FORMATS) -> list[str]:
        """Return what is known here, and has no effect."""
        asked = (self.response_format, self.structured_outputs)
        idle = _DRAWN if self.use_beam_search else _SEARCHED
        names = [name for name in idle if getattr(self, name) is not None]
        return names + [name for one in asked if one is not None for name in one.unenforced()]

    def with_defaults(self, defaults: RequestDefaults) -> Self:
        """Return the request with the operator's defaults for what it leaves open."""
        changed: dict[str, object] = {}
        if defaults.usage_in_streams and self.stream:
            options = self.stream_options or StreamOptions()
            changed["stream_options"] = msgspec.structs.replace(options, include_usage=True)
        if defaults.tokens_as_ids and self.return_tokens_as_token_ids is None:
            changed["return_tokens_as_token_ids"] = True
        return msgspec.structs.replace(self, **changed) if changed else self

    @property
    def tells_usage(self) -> bool:
        """Tell whether a stream ends with its usage."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def tells_usage_always(self) -> bool:
        """Tell whether every chunk has the usage."""
        return (
            self.tells_usage
            and self.stream_options is not None
            and bool(self.stream_options.continuous_usage_stats)
        )


_SEARCHED = ("length_penalty", "early_stopping")  # for beam searches alone
_DRAWN = ("temperature", "top_p", "top_k", "min_p", "seed")  # for all but them
_SAMPLED = tuple(
    name
    for name in Generation.__struct_fields__
    if name in SamplingParams.__struct_fields__
    and name not in ("max_tokens", "logprobs", "structured_outputs")
)
