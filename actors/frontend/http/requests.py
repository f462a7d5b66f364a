"""What clients send: OpenAI's fields, and those that vLLM's users add to them.

A body is read in two steps, so that a field that is not known here can be named, rather than passed over.
"""

from __future__ import annotations

import re
from typing import Any, TypeVar

import msgspec

from pageant.protocol.errors import BadRequest
from pageant.protocol.sampling import SamplingParams

CHOICES_MAX = 128

R = TypeVar("R", bound="Generation")


class StreamOptions(msgspec.Struct, kw_only=True):
    """`include_usage`: end the stream with a chunk that has no choices but the usage."""

    include_usage: bool = False


class Generation(msgspec.Struct, kw_only=True):
    """What completions and chats have in common. None is the default of `SamplingParams`."""

    model: str | None = None
    n: int | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: tuple[int, ...] | None = None
    seed: int | None = None
    stop: str | tuple[str, ...] | None = None
    stop_token_ids: tuple[int, ...] | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    user: str | None = None

    def max_output_tokens(self) -> int | None:
        """The most tokens of the answer; None is as many as fit."""
        raise NotImplementedError

    def sampling_params(self) -> SamplingParams:
        """How the answer is drawn.

        Raises:
            BadRequest: a value out of range.
        """
        given = {name: getattr(self, name) for name in SAMPLED if getattr(self, name) is not None}
        return SamplingParams(max_tokens=self.max_output_tokens(), **given)


SAMPLED = tuple(
    name for name in Generation.__struct_fields__ if name in SamplingParams.__struct_fields__ and name != "n"
)
NO_EFFECT = ("user",)  # known, and of no consequence here


class CompletionRequest(Generation, kw_only=True):
    """`POST /v1/completions`."""

    prompt: Any
    max_tokens: int | None = 16
    echo: bool = False

    def max_output_tokens(self) -> int | None:
        """See `Generation`."""
        return self.max_tokens

    def prompts(self) -> list[str | list[int]]:
        """One or several texts or lists of token ids, as a list of such.

        Raises:
            BadRequest: something else, or too many.
        """
        prompt = self.prompt
        if isinstance(prompt, str) or (isinstance(prompt, list) and prompt and isinstance(prompt[0], int)):
            return [prompt]
        if not isinstance(prompt, list) or not prompt:
            raise BadRequest(
                f"prompt is {prompt!r:.80}; expected a text, a list of token ids, or a list of such", "prompt"
            )
        if len(prompt) > CHOICES_MAX:
            raise BadRequest(f"prompt has {len(prompt)} entries; at most {CHOICES_MAX} are taken", "prompt")
        return prompt


class ContentPart(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A part of a message's content."""

    type: str
    text: str


class Turn(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One message of a conversation."""

    role: str
    content: str | tuple[ContentPart, ...] | None = None

    def text(self, place: str) -> str:
        """The content's text."""
        if self.content is None or isinstance(self.content, str):
            return self.content or ""
        for index, part in enumerate(self.content):
            if part.type != "text":
                raise BadRequest(
                    f"{place}.content[{index}].type is {part.type!r}; expected 'text'", "messages"
                )
        return "".join(part.text for part in self.content)


class ChatRequest(Generation, kw_only=True):
    """`POST /v1/chat/completions`."""

    messages: tuple[Turn, ...]
    max_tokens: int | None = None
    max_completion_tokens: int | None = None

    def max_output_tokens(self) -> int | None:
        """See `Generation`. OpenAI's newer name wins."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    def conversation(self) -> list[dict[str, str]]:
        """The messages, as the tokenizer takes them."""
        turns = enumerate(self.messages)
        return [{"role": turn.role, "content": turn.text(f"messages[{i}]")} for i, turn in turns]


def read(body: bytes, shape: type[R]) -> tuple[R, list[str]]:
    """The request in a body, and the names of its fields that have no effect here.

    Raises:
        BadRequest: not JSON, or not of this shape; names the field.
    """
    try:
        data = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadRequest(f"the body is not JSON: {error}") from None
    except RecursionError:
        raise BadRequest("the body is nested too deeply") from None
    if not isinstance(data, dict):
        raise BadRequest(f"the body is a {type(data).__name__}; expected a JSON object")
    try:
        request = msgspec.convert(data, shape, str_keys=True)
    except msgspec.ValidationError as error:
        raise BadRequest(*_place(str(error))) from None
    known = set(shape.__struct_fields__)
    passed_over = [
        name for name in data if name not in known or (name in NO_EFFECT and data[name] is not None)
    ]
    return request, passed_over


def _place(message: str) -> tuple[str, str | None]:
    """msgspec's complaint, and the top-level field that it is about."""
    found = re.search(r"`\$\.?([A-Za-z_]+)", message) or re.search(r"required field `(\w+)`", message)
    return message, found[1] if found else None
