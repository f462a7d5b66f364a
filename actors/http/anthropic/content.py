"""Content blocks of Anthropic's messages, and the turns of a chat that they mean."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import msgspec

from pageant.actors.frontend.given_images import read_encoded, read_url
from pageant.actors.http.chat.turns import (
    CalledFunction,
    CalledTool,
    ContentPart,
    Turn,
    check_medium,
    merged,
)
from pageant.protocol.errors import BadRequest

_TEXTS = ("text", "tool_reference", "search_result")
_CALLS, _RESULTS = ("tool_use", "mcp_tool_use"), ("tool_result", "mcp_tool_result")
_IMAGE = "image"
_READ = (*_TEXTS, *_CALLS, *_RESULTS, _IMAGE, "thinking", "document")


class Block(msgspec.Struct, kw_only=True):
    """A block of a message's content. Kinds that say nothing to a model, such as what Anthropic's servers did, are
    passed over."""

    type: str
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    data: str | None = None
    id: str | None = None
    name: str | None = None
    input: Any = None
    tool_use_id: str | None = None
    content: str | tuple[Block, ...] | dict[str, Any] | None = None
    is_error: bool | None = None
    tool_name: str | None = None
    title: str | None = None
    source: Any = None
    cache_control: Any = None
    citations: Any = None

    @staticmethod
    def is_read(given: dict[str, Any]) -> bool:
        """Tell whether its fields are read. Other types may have other values under the same names."""
        return given.get("type") in _READ

    def said(self, place: str) -> str | None:
        """Return the block's text; None where it has none.

        Raises:
            BadRequest: an image, a sound or a file, or a text that is missing.
        """
        if self.type == "text":
            return _needed(self.text, f"{place}.text")
        if self.type == "tool_reference":
            return self.tool_name
        if self.type == "search_result":
            return joined(blocks_of(self.content, place), f"{place}.content", "\n")
        if self.type == "document" and (text := _document(self.source, place)) is not None:
            return text
        check_medium(self.type, place, "messages")
        return None

    def seen(self, place: str) -> ContentPart | None:
        """Return the image that it is; None where it is none.

        Raises:
            BadRequest: the image is missing, or cannot be taken as it is.
        """
        if self.type != _IMAGE:
            return None
        where, source = f"{place}.source", self.source if isinstance(self.source, dict) else {}
        kind = source.get("type")
        if kind == "base64":
            image = read_encoded(source.get("data"), f"{where}.data")
        elif kind == "url":
            image = read_url(source.get("url"), f"{where}.url")
        else:
            raise BadRequest(f"{where}.type is {kind!r:.80}; expected base64 or url", "messages")
        return ContentPart(type=_IMAGE, image=image)

    def called(self, place: str) -> CalledTool | None:
        """Return the call that it is.

        Raises:
            BadRequest: a part of it is missing.
        """
        if self.type not in _CALLS:
            return None
        name = _needed(self.name, f"{place}.name")
        given = {} if self.input is None else self.input
        return CalledTool(id=self.id or "", function=CalledFunction(name=name, arguments=given))

    def result(self, place: str) -> Turn | None:
        """Return what came of a call, as a turn.

        Raises:
            BadRequest: a part of it is missing, or cannot be told to a model.
        """
        if self.type not in _RESULTS:
            return None
        call_id = _needed(self.tool_use_id, f"{place}.tool_use_id")
        content = blocks_of(self.content, f"{place}.content")
        return Turn(role="tool", tool_call_id=call_id, content=_with_images(content, f"{place}.content"))

    @property
    def is_mute(self) -> bool:
        """Tell whether nothing of the block can be passed to a model."""
        return self.type not in _READ


Content = str | tuple[Block, ...] | None


def _needed(value: str | None, place: str) -> str:
    if value is None:
        raise BadRequest(f"{place} is missing; expected a text", "messages")
    return value


def _document(source: Any, place: str) -> str | None:
    """Return the text of a document; None where it has pages, or is elsewhere."""
    if not isinstance(source, dict):
        return None
    if source.get("type") == "text" and isinstance(source.get("data"), str):
        text: str = source["data"]
        return text
    if source.get("type") == "content":
        return joined(blocks_of(source.get("content"), place), f"{place}.source.content", "\n")
    return None


def blocks_of(content: Any, place: str) -> Content:
    """Return the blocks of a content that was not read by its shape.

    Raises:
        BadRequest: it is no content.
    """
    if content is None or isinstance(content, str):
        return content
    try:
        return msgspec.convert(content, tuple[Block, ...], from_attributes=True)
    except msgspec.ValidationError as error:
        raise BadRequest(f"{place}: {error}"[:1000], "messages") from None


def joined(content: Content, place: str, separator: str = "") -> str:
    """Return the text of a content.

    Raises:
        BadRequest: a block is an image, a sound or a file, or lacks its text.
    """
    if content is None or isinstance(content, str):
        return content or ""
    texts = [block.said(f"{place}[{index}]") for index, block in enumerate(content)]
    return separator.join(text for text in texts if text is not None)


def _with_images(content: Content, place: str) -> str | tuple[str | ContentPart, ...]:
    """Return the texts and images of a content, in order.

    Raises:
        BadRequest: a block is a sound or a file, or lacks its text or image.
    """
    if content is None or isinstance(content, str):
        return content or ""
    parts = (
        block.seen(where) or block.said(where) or ""
        for block, where in ((block, f"{place}[{index}]") for index, block in enumerate(content))
    )
    return merged(parts)


class MessageTurn(msgspec.Struct, kw_only=True):
    """Message of a conversation."""

    role: Literal["user", "assistant", "system"]
    content: str | tuple[Block, ...] | None = None

    def turns(self, place: str) -> Iterator[Turn]:
        """Yield the same as OpenAI has it, where a tool's result is a turn of its own.

        Raises:
            BadRequest: a block cannot be told to a model, and must not be passed over.
        """
        if not isinstance(self.content, tuple):
            yield Turn(role=self.role, content=self.content or "")
            return
        parts, thoughts, calls = list[str | ContentPart](), list[str](), list[CalledTool]()
        num_results = 0
        for index, block in enumerate(self.content):
            where = f"{place}.content[{index}]"
            if (result := block.result(where)) is not None:
                num_results += 1
                yield result
            elif (called := block.called(where)) is not None:
                calls.append(called)
            elif block.type == "thinking":
                thoughts.append(block.thinking or "")
            elif (part := block.seen(where) or block.said(where)) is not None:
                parts.append(part)
        if parts or thoughts or calls or not num_results:
            yield Turn(
                role=self.role,
                content=merged(parts) if parts or not calls else None,
                reasoning_content="".join(thoughts) or None,
                tool_calls=tuple(calls) or None,
            )

    def passed_over(self) -> list[str]:
        """Return the places of blocks that say nothing to a model."""
        blocks = self.content if isinstance(self.content, tuple) else ()
        return [f"messages[].content:{block.type}"[:128] for block in blocks if block.is_mute]
