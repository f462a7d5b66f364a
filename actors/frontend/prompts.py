"""Prompts as users give them, checked as early as can be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict, TypeVar, cast

import numpy as np
import numpy.typing as npt

from pageant.actors.frontend.embeds import EmbeddedPrompt, read_embeds
from pageant.actors.frontend.given_audio import PromptWithAudio, check_audio, read_sound
from pageant.actors.frontend.given_images import read_image
from pageant.actors.frontend.given_videos import read_videos
from pageant.actors.frontend.images import PromptWithImages, check_images
from pageant.protocol.arrays import int32
from pageant.protocol.checks import check_encodable, check_integer, check_number, expected, to_builtin
from pageant.protocol.encoding import ImageInputs, ImagePart, VideoPart
from pageant.protocol.errors import BadRequest
from pageant.protocol.hearing import AudioInputs, AudioPart
from pageant.protocol.pooling import PooledModel
from pageant.protocol.sampling import SamplingParams
from pageant.protocol.tokenizing import Tokenize

Prompt = str | Sequence[int] | Mapping[str, Any]
REQUEST_TEXT_MAX = 256  # characters of a request's names
EXTRA_KEYS_MAX = 64
DEADLINE_MAX = 1e9
MAX_LOGPROBS = 20  # unless an engine says otherwise
PRIORITY_MAX = 2**31 - 1
Conversation = Sequence[Mapping[str, Any]]
T = TypeVar("T", bound=Sequence[Any] | npt.NDArray[Any])
PROMPT_CHARACTERS_MAX = 64_000_000


@dataclass(frozen=True)
class Limits:
    """Limits of requests to a model.

    Attributes:
        max_logprobs: the most likely tokens that are reported at one place; -1 is all.
        defaults: the parameters of a request that brings none.
        adapters: the names of the model's adapters.
        has_tokenizer: texts can be tokenized; without one, requests consist of token ids alone.
        embeds_size: the width of a prompt's embeddings; None if the model takes none.
        generates: the model generates text.
        pooled: what the model makes of texts otherwise; None is nothing.
        images: those that the model takes; None is none.
        audio: the sounds that the model takes, and nothing but these; None is none.
    """

    vocab_size: int
    max_model_len: int
    max_logprobs: int
    defaults: SamplingParams
    adapters: tuple[str, ...] = ()
    has_tokenizer: bool = True
    embeds_size: int | None = None
    generates: bool = True
    pooled: PooledModel | None = None
    images: ImageInputs | None = None
    audio: AudioInputs | None = None

    @property
    def modalities(self) -> list[str]:
        """Return what prompts may hold: text, image, video or audio."""
        if self.audio is not None:
            return ["audio"]
        if self.images is None:
            return ["text"]
        kinds = {"image": self.images.most > 0, "video": self.images.video is not None}
        return ["text", *(kind for kind, taken in kinds.items() if taken)]


class RequestSettings(TypedDict, total=False):
    """Settings of one request, besides its prompt and its parameters.

    Attributes:
        priority: a lower number is sooner, with a policy that reads it.
        tenant: whose share of the service it takes, with a policy that reads it.
        deadline: seconds from now; then it ends with `abort`, and keeps the tokens that it has. If it could not
            be
            submitted by then, it ends with `RequestExpired`.
        cache_salt: its cached prefixes are shared only with requests of the same salt.
        extra_keys: likewise, of the same keys: what its KV depends on besides tokens, where an executor of your own
            computes with an image, say.
        adapter: the name of the model's adapter that computes it; None is the model as it is.
        traceparent: the span that it is a part of, as W3C writes it, where requests are traced.
        reasoning_marks: the texts before and after the model's reasoning, for `thinking_token_budget`; None is
            those of its chat template.
    """

    priority: int
    tenant: str
    deadline: float | None
    cache_salt: str | None
    extra_keys: Sequence[str]
    adapter: str | None
    traceparent: str | None
    reasoning_marks: tuple[str, str] | None


def check_settings(settings: Mapping[str, Any], adapters: Sequence[str] = ()) -> RequestSettings:
    """A request's settings.

    Args:
        adapters: those that there are.

    Raises:
        BadRequest: unknown, or out of range.
    """
    settings = {name: to_builtin(value) for name, value in settings.items()}
    for name, value in settings.items():
        check_encodable(name, value)
        if name == "priority":
            check_integer(name, value, -PRIORITY_MAX, PRIORITY_MAX)
        elif name == "deadline" and value is not None:
            check_number(name, value, 0.0, DEADLINE_MAX, above_low=True)
        elif name == "tenant" or (name in ("cache_salt", "traceparent") and value is not None):
            check_name(name, value, shortest=0)
        elif name == "reasoning_marks":
            if value is not None:
                _check_marks(value)
        elif name == "extra_keys":
            settings = {**settings, name: _check_keys(value)}
        elif name == "adapter":
            if value is not None and value not in adapters:
                known = expected(str(value), adapters) if adapters else "this model has none"
                raise BadRequest(f"adapter is {value!r:.300}; {known}", name)
        elif name not in RequestSettings.__annotations__:
            hint = expected(name, RequestSettings.__annotations__)
            raise BadRequest(f"{name} is no setting of a request; {hint}", name)
    return cast(RequestSettings, settings)


def _check_marks(marks: object) -> None:
    if not (isinstance(marks, tuple | list) and len(marks) == 2):
        raise BadRequest(f"reasoning_marks is {marks!r:.300}; expected two texts", "reasoning_marks")
    for index, mark in enumerate(marks):
        check_name(f"reasoning_marks[{index}]", mark)


def _check_keys(keys: object) -> tuple[str, ...]:
    if not isinstance(keys, tuple | list) or len(keys) > EXTRA_KEYS_MAX:
        raise BadRequest(
            f"extra_keys is {keys!r:.300}; expected a list of at most {EXTRA_KEYS_MAX} texts", "extra_keys"
        )
    for index, key in enumerate(keys):
        check_name(f"extra_keys[{index}]", key)
    return tuple(keys)


def check_name(name: str, value: object, shortest: int = 1) -> None:
    """Refuses all but texts of a bounded length."""
    if not isinstance(value, str) or not shortest <= len(value) <= REQUEST_TEXT_MAX:
        raise BadRequest(
            f"{name} is {value!r:.300}; expected a text of {shortest} to {REQUEST_TEXT_MAX} characters", name
        )
    check_text(value, name)


def check_prompt(
    prompt: object, limits: Limits, params: SamplingParams
) -> Tokenize | npt.NDArray[np.int32] | EmbeddedPrompt | PromptWithImages | PromptWithAudio:
    """Return a text as a request to the tokenizer, token ids as int32 [tokens], or embeddings as rows, truncated
    if `params` say so; the first two perhaps with images, or with a sound.

    Raises:
        BadRequest: it is none of them, empty, too long, or has ids or rows that are not of this model.
    """
    if isinstance(prompt, Mapping):
        if prompt.get(EMBEDS) is not None:
            return _embedded(prompt, limits, params)
        images, sound = _media(prompt)
        if images or sound:
            check_images(images, limits.images, params, "prompt")
            check_audio(sound is not None, limits.audio, params)
            checked = _bare(prompt, limits, params)
            return PromptWithImages(checked, images) if sound is None else PromptWithAudio(checked, sound)
        prompt = _unwrapped(prompt)
    if isinstance(prompt, str):
        if not prompt:
            raise BadRequest("the prompt is empty; expected some text", "prompt")
        if len(prompt) > PROMPT_CHARACTERS_MAX:
            raise BadRequest(
                f"the prompt has {len(prompt)} characters; at most {PROMPT_CHARACTERS_MAX} are taken",
                "prompt",
            )
        check_text(prompt, "prompt")
        return Tokenize(text=to_builtin(prompt))
    if isinstance(prompt, Sequence | np.ndarray) and not isinstance(prompt, bytes | bytearray):
        return check_token_ids(truncated(prompt, params, limits.max_model_len), limits)
    raise BadRequest(
        f"the prompt is a {type(prompt).__name__}; expected a str or a list of token ids", "prompt"
    )


EMBEDS = "prompt_embeds"
_HELD = ("prompt_token_ids", "prompt")
_NEEDS_TOKENS = ("prompt_logprobs", "thinking_token_budget")  # of the prompt
_MEDIA = ("multi_modal_data", "multi_modal_uuids", "mm_processor_kwargs")


def salt_of(prompt: object) -> str | None:
    """Return what a prompt in vLLM's form says of `cache_salt`; None where it says nothing."""
    return prompt.get("cache_salt") if isinstance(prompt, Mapping) else None


def _media(prompt: Mapping[Any, Any]) -> tuple[tuple[ImagePart | VideoPart, ...], AudioPart | None]:
    """Return images and videos, or the sound, of a prompt in vLLM's form: those of `multi_modal_data`."""
    data = prompt.get("multi_modal_data")
    if not data:
        return (), None
    if not isinstance(data, Mapping) or (set(data) != {"audio"} and set(data) - {"image", "video"}):
        found = list(data) if isinstance(data, Mapping) else type(data).__name__
        raise BadRequest(
            f"multi_modal_data has {found!r:.200}; expected image and video, or audio alone", "prompt"
        )
    if (sound := data.get("audio")) is not None:
        sound = sound[0] if isinstance(sound, list) and len(sound) == 1 else sound
        return (), read_sound(sound, "multi_modal_data.audio")
    given = data.get("image")
    given = given if isinstance(given, list | tuple) else [] if given is None else [given]
    images = [read_image(one, f"multi_modal_data.image[{index}]") for index, one in enumerate(given)]
    return (*images, *read_videos(data.get("video"), "multi_modal_data.video")), None


def _bare(
    prompt: Mapping[Any, Any], limits: Limits, params: SamplingParams
) -> Tokenize | npt.NDArray[np.int32]:
    """Return a prompt without what else it has."""
    bare = {key: value for key, value in prompt.items() if key not in _MEDIA}
    checked = check_prompt(bare, limits, params)
    assert isinstance(checked, Tokenize | np.ndarray), "it has neither images nor a sound"
    return checked


def _unwrapped(prompt: Mapping[Any, Any]) -> object:
    """Return a prompt in vLLM's form: `{"prompt": text}` or `{"prompt_token_ids": ids}`, of which ids go first."""
    given = {key: value for key, value in prompt.items() if value is not None and key != "cache_salt"}
    for key in _MEDIA:
        if given.pop(key, None):
            raise BadRequest(f"the prompt has {key}; expected none: it has no effect here", "prompt")
    held = next((key for key in _HELD if key in given), None)
    if held is None or set(given) - set(_HELD):
        raise BadRequest(
            f"the prompt is a mapping of {list(given)!r:.200}; expected one of {', '.join(reversed(_HELD))}",
            "prompt",
        )
    text = held == "prompt"
    if isinstance(given[held], str) != text:
        kind = "a text" if text else "a list of token ids"
        raise BadRequest(f"{held} is a {type(given[held]).__name__}; expected {kind}", "prompt")
    return given[held]


def _embedded(prompt: Mapping[Any, Any], limits: Limits, params: SamplingParams) -> EmbeddedPrompt:
    """Return the rows of a prompt in vLLM's form: `{"prompt_embeds": tensor}`. A text beside them is not read."""
    given = [key for key, value in prompt.items() if value is not None]
    if unknown := set(given) - {EMBEDS, "prompt", "cache_salt"}:
        raise BadRequest(
            f"the prompt has {min(unknown)!r:.200} beside {EMBEDS}; expected one of them", "prompt"
        )
    for name in _NEEDS_TOKENS:
        if getattr(params, name) is not None:
            raise BadRequest(f"{name} is given; expected none with {EMBEDS}, which are no tokens", name)
    rows = truncated(read_embeds(prompt[EMBEDS], limits.embeds_size).rows, params, limits.max_model_len)
    check_length(len(rows), limits.max_model_len, EMBEDS)
    return EmbeddedPrompt(rows)


def truncated(prompt: T, params: SamplingParams, max_model_len: int) -> T:
    """The end of a prompt's token ids, or their beginning, as `truncate_prompt_tokens` and `truncation_side` say."""
    most = params.truncate_prompt_tokens
    if most is None:
        return prompt
    if most < 0:
        most = max(1, max_model_len - (params.max_tokens or 1))
    return cast(T, prompt[:most] if params.truncation_side == "right" else prompt[-most:])


def check_text(text: str, place: str) -> None:
    """Refuses lone surrogates, which no tokenizer can read."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise BadRequest(f"{place}: character {error.start} is a lone surrogate, not text", place) from None


def check_token_ids(
    ids: Sequence[Any] | npt.NDArray[Any], limits: Limits, name: str = "prompt"
) -> npt.NDArray[np.int32]:
    """Return token ids as int32 [tokens]. `name` is the name of their parameter.

    Raises:
        BadRequest: there are none or too many, or one is not an id of this model; names its index.
    """
    check_length(len(ids), limits.max_model_len, name)
    return vocabulary_ids(ids, limits.vocab_size, name)


def vocabulary_ids(
    ids: Sequence[Any] | npt.NDArray[Any], vocab_size: int, name: str = "prompt"
) -> npt.NDArray[np.int32]:
    """Return token ids as int32 [tokens]. `name` is the name of their parameter.

    Raises:
        BadRequest: one is not an id of a vocabulary of this size; names its index.
    """
    if isinstance(ids, list) and set(map(type, ids)) == {int} and min(ids) >= 0 and max(ids) < vocab_size:
        return int32(ids)
    for index, token in enumerate(ids):
        if isinstance(token, bool) or not isinstance(token, int | np.integer) or not 0 <= token < vocab_size:
            raise BadRequest(
                f"{name}[{index}] is {token!r:.80}; expected a token id from 0 to {vocab_size - 1}", name
            )
    return int32(ids)


def check_vocabulary(token_ids: npt.NDArray[np.int32], vocab_size: int, name: str = "prompt") -> None:
    """Refuse token ids, int32 [tokens], that the tokenizer knows and the model has no embeddings for."""
    if len(token_ids) and token_ids.max() >= vocab_size:
        token = int(token_ids[token_ids >= vocab_size][0])
        raise BadRequest(
            f"{name} has the token {token} of the tokenizer; the model knows those from 0 to {vocab_size - 1}",
            name,
        )


def check_length(num_tokens: int, max_model_len: int, name: str = "prompt") -> None:
    """Refuses a prompt without tokens, or one that leaves no room for an answer."""
    if not num_tokens:
        raise BadRequest("the prompt has no tokens", name)
    if num_tokens >= max_model_len:
        raise BadRequest(
            f"the prompt has {num_tokens} tokens; max_model_len is {max_model_len}, so at most "
            f"{max_model_len - 1} leave room for an answer",
            name,
        )


def check_params(params: object, limits: Limits, place: str = "params") -> SamplingParams:
    """Sampling parameters, or the defaults for None.

    Raises:
        BadRequest: another type, tokens that are no ids of this model, or more than its limits allow.
    """
    if not limits.generates and limits.pooled is not None:
        does = "embeds texts" if limits.pooled.task == "embed" else "classifies texts"
        raise BadRequest(f"this model {does} and generates none", "model")
    if params is None:
        return limits.defaults
    vocab_size = limits.vocab_size
    if not isinstance(params, SamplingParams):
        raise BadRequest(f"{place} is a {type(params).__name__}; expected SamplingParams", place)
    for name in (
        *("stop_token_ids", "allowed_token_ids", "logprob_token_ids", "logit_bias"),
        "trace_decode_token_ids",
    ):
        tokens = getattr(params, name) or ()
        if max(tokens, default=0) >= vocab_size:
            index, token = next(found for found in enumerate(tokens) if found[1] >= vocab_size)
            place = f"{name}[{index}]" if name != "logit_bias" else "logit_bias: a token id"
            raise BadRequest(f"{place} is {token}; expected a token id from 0 to {vocab_size - 1}", name)
    most = vocab_size if limits.max_logprobs < 0 else min(limits.max_logprobs, vocab_size)
    for name in ("logprobs", "prompt_logprobs"):
        asked = getattr(params, name)
        if asked is not None and (vocab_size if asked < 0 else asked) > most:
            raise BadRequest(
                f"{name} is {asked}; at most {most} are told (max_logprobs is {limits.max_logprobs})", name
            )
    for index, word in enumerate(params.bad_words):
        check_text(word, f"bad_words[{index}]")
    if not limits.has_tokenizer:
        _check_without_tokenizer(params)
    return params


def _check_without_tokenizer(params: SamplingParams) -> None:
    for name in ("stop", "bad_words", "structured_outputs", "thinking_token_budget"):
        if getattr(params, name) not in (None, ()):
            raise BadRequest(
                f"{name} needs the texts of tokens; the model is served without a tokenizer (skip_tokenizer_init)",
                name,
            )


def check_allowed(params: SamplingParams, bad_words: Sequence[Sequence[int]]) -> None:
    """Check that some token may be sampled.

    Raises:
        BadRequest: each allowed token is a bad word by itself.
    """
    never = {ids[0] for ids in bad_words if len(ids) == 1}
    if params.allowed_token_ids is not None and never.issuperset(params.allowed_token_ids):
        raise BadRequest(
            "bad_words has every one of allowed_token_ids; expected one that is left", "bad_words"
        )
