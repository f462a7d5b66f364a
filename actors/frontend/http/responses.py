"""What clients get: OpenAI's shapes."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

Reason = Literal["stop", "length", "abort", "error"]


class Usage(msgspec.Struct, kw_only=True):
    """Tokens in and out."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: dict[str, int]

    @classmethod
    def of(cls, num_prompt: int, num_output: int, num_cached: int) -> Usage:
        """The usage of some tokens; `num_cached` of the prompt's were found in the prefix cache."""
        return cls(
            prompt_tokens=num_prompt,
            completion_tokens=num_output,
            total_tokens=num_prompt + num_output,
            prompt_tokens_details={"cached_tokens": num_cached},
        )


class TextChoice(msgspec.Struct, kw_only=True):
    """A completion, or the next piece of one."""

    index: int
    text: str
    logprobs: None = None
    finish_reason: Reason | None = None
    stop_reason: str | int | None = None


class Completion(msgspec.Struct, kw_only=True, omit_defaults=False):
    """The answer to a completion request, or a chunk of it."""

    id: str
    created: int
    model: str
    choices: list[TextChoice]
    object: Literal["text_completion"] = "text_completion"
    usage: Usage | None = None


class Delta(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The next piece of a message."""

    role: Literal["assistant"] | None = None
    content: str | None = None


class Message(msgspec.Struct, kw_only=True):
    """A whole message."""

    content: str
    role: Literal["assistant"] = "assistant"
    refusal: None = None


class ChatChoice(msgspec.Struct, kw_only=True):
    """A message with how it ended."""

    index: int
    message: Message
    logprobs: None = None
    finish_reason: Reason | None = None
    stop_reason: str | int | None = None


class ChunkChoice(msgspec.Struct, kw_only=True):
    """A piece of a message, with how it ended in the last one."""

    index: int
    delta: Delta
    logprobs: None = None
    finish_reason: Reason | None = None
    stop_reason: str | int | None = None


class ChatCompletion(msgspec.Struct, kw_only=True):
    """The answer to a chat request."""

    id: str
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    object: Literal["chat.completion"] = "chat.completion"


class ChatChunk(msgspec.Struct, kw_only=True):
    """A chunk of an answer to a chat request."""

    id: str
    created: int
    model: str
    choices: list[ChunkChoice]
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    usage: Usage | None = None


class Model(msgspec.Struct, kw_only=True):
    """A model that is served."""

    id: str
    created: int
    max_model_len: int
    object: Literal["model"] = "model"
    owned_by: str = "pageant"


class Error(msgspec.Struct, kw_only=True):
    """What went wrong. `param` is the field that it is about."""

    message: str
    type: str
    param: str | None = None
    code: str | int | None = None


_encode = msgspec.json.Encoder().encode


def event(body: Any) -> bytes:
    """One server-sent event."""
    return b"data: " + _encode(body) + b"\n\n"


LAST_EVENT = b"data: [DONE]\n\n"
