"""Responses of `/v1/chat/completions`, whole and in chunks."""

from __future__ import annotations

from typing import Literal

import msgspec

from pageant.actors.http.openai.logprobs import (
    ChatLogprobs,
    PromptLogprob,
)
from pageant.actors.http.shapes import Reason, Usage


class FunctionCall(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A function's name, or the next part of its arguments, which are JSON."""

    name: str | None = None
    arguments: str = msgspec.field(default_factory=str)


class CustomCall(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A custom tool's name, or the next part of its input, which is a text."""

    name: str | None = None
    input: str = msgspec.field(default_factory=str)


class ToolCall(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A tool call, or the next of one: of a function, or of a custom tool. `index` numbers them in chunks only."""

    function: FunctionCall | None = None
    custom: CustomCall | None = None
    id: str | None = None
    type: str | None = None
    index: int | None = None


class Delta(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The next of a message."""

    role: Literal["assistant"] | None = None
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[ToolCall] | None = None


class Message(msgspec.Struct, kw_only=True):
    """A whole message."""

    content: str | None
    role: Literal["assistant"] = "assistant"
    refusal: None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[ToolCall] | msgspec.UnsetType = msgspec.UNSET


class ChatChoice(msgspec.Struct, kw_only=True):
    """A message with how it ended."""

    index: int
    message: Message
    logprobs: ChatLogprobs | None = None
    finish_reason: Reason | None = None
    stop_reason: str | int | None = None
    token_ids: list[int] | None = None


class ChunkChoice(msgspec.Struct, kw_only=True):
    """A piece of a message, with how it ended in the last one."""

    index: int
    delta: Delta
    logprobs: ChatLogprobs | None = None
    finish_reason: Reason | None = None
    stop_reason: str | int | None = None
    token_ids: list[int] | None = None


class ChatCompletion(msgspec.Struct, kw_only=True):
    """The answer to a chat request."""

    id: str
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    object: Literal["chat.completion"] = "chat.completion"
    system_fingerprint: str | None = None
    prompt_logprobs: list[dict[str, PromptLogprob] | None] | None = None
    prompt_token_ids: list[int] | None = None


class ChatChunk(msgspec.Struct, kw_only=True):
    """A chunk of an answer to a chat request."""

    id: str
    created: int
    model: str
    choices: list[ChunkChoice]
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    system_fingerprint: str | None = None
    usage: Usage | None = None
    prompt_token_ids: list[int] | None = None
