"""Images and videos in conversations, as chat templates take them: contents that are texts, or lists of parts.

Until a template renders them, contents with images are texts with marks in them, so that turns can be made fit for
the template as all others are (see `chat_fitting`).
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["ContentKinds", "Medium", "find_kinds", "for_template", "marked"]

Message = Mapping[str, Any]

_IMAGE, _NEXT, _VIDEO = "\ufdd0", "\ufdd1", "\ufdd2"
"""Marks of an image, of the beginning of another part, and of a video. Unicode has no characters there, and never will.
"""
_PROBE = "PROBECONTENT"


class Medium(enum.Enum):
    """A part of a content that is no text, by its mark."""

    IMAGE = _IMAGE
    VIDEO = _VIDEO


@dataclass(frozen=True)
class ContentKinds:
    """Kinds of contents that a template takes: texts, and lists of parts."""

    texts: bool = True
    lists: bool = False


def find_kinds(render: Callable[[Sequence[Message]], str]) -> ContentKinds:
    """Return the kinds of contents of the template that `render` renders with.

    Args:
        render: raises a `ValueError` where the template refuses the messages, or fails.
    """

    def shown(content: Any) -> str:
        try:
            return render([{"role": "user", "content": content}])
        except (ValueError, TypeError):
            return ""

    parts = shown([{"type": "text", "text": _PROBE}])
    lists = _PROBE in parts and "'type'" not in parts and '"type"' not in parts
    return ContentKinds(texts=not lists or _PROBE in shown(_PROBE), lists=lists)


def marked(parts: Sequence[str | Medium]) -> str:
    """Return a content of texts, images and videos, in order, as a text with marks."""
    return _NEXT.join(part.value if isinstance(part, Medium) else _bare(part) for part in parts)


def _bare(text: str) -> str:
    for mark in (_IMAGE, _NEXT, _VIDEO):
        text = text.replace(mark, "")
    return text


def for_template(
    messages: Sequence[Message], kinds: ContentKinds, placeholders: Mapping[Medium, str]
) -> list[Message]:
    """Return messages as a template of these kinds takes them.

    Args:
        messages: with contents that are texts, some of them `marked`.
        placeholders: stand for an image and for a video in a text.
    """
    return [_for_template(message, kinds, placeholders) for message in messages]


def _for_template(message: Message, kinds: ContentKinds, placeholders: Mapping[Medium, str]) -> Message:
    content = message.get("content")
    if not isinstance(content, str):
        return message
    has_media = any(medium.value in content for medium in Medium)
    if kinds.lists and (has_media or not kinds.texts):
        parts = [_part(piece) for part in content.split(_NEXT) for piece in _pieces(part)]
        return {**message, "content": parts}
    if not has_media:
        return message
    content = content.replace(_NEXT, "\n")
    for medium in Medium:
        content = content.replace(medium.value, placeholders.get(medium, ""))
    return {**message, "content": content}


def _part(piece: str) -> dict[str, str]:
    """Return a piece of text, or a medium's mark, as templates take it."""
    for medium in Medium:
        if piece == medium.value:
            return {"type": medium.name.lower()}
    return {"type": "text", "text": piece}


def _pieces(part: str) -> list[str]:
    """Return a part in pieces of text and of one medium each: turns that were joined have both."""
    marks = [medium.value for medium in Medium if medium.value in part]
    if not marks:
        return [part]
    for mark in marks:
        part = part.replace(mark, f"{_NEXT}{mark}{_NEXT}")
    return [piece for piece in part.split(_NEXT) if piece]
