"""Images in conversations, in the form that a chat template takes: contents that are texts, or lists of parts.

Until a template renders them, contents with images are texts with two marks in them, so that turns can be made fit for
the template as all others are (see `chat_fitting`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["ContentKinds", "find_kinds", "for_template", "marked"]

Message = Mapping[str, Any]

_IMAGE, _NEXT = "\ufdd0", "\ufdd1"
"""Marks of an image, and of the beginning of another part. Unicode has no characters there, and never will."""
_PROBE = "PROBECONTENT"


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


def marked(parts: Sequence[str | None]) -> str:
    """Return a content of texts and images (None), in order, as a text with marks."""
    return _NEXT.join(_IMAGE if part is None else _bare(part) for part in parts)


def _bare(text: str) -> str:
    return text.replace(_IMAGE, "").replace(_NEXT, "")


def for_template(messages: Sequence[Message], kinds: ContentKinds, placeholder: str) -> list[Message]:
    """Return messages as a template of these kinds takes them.

    Args:
        messages: with contents that are texts, some of them `marked`.
        placeholder: stands for an image in a text.
    """
    return [_for_template(message, kinds, placeholder) for message in messages]


def _for_template(message: Message, kinds: ContentKinds, placeholder: str) -> Message:
    content = message.get("content")
    if not isinstance(content, str):
        return message
    has_images = _IMAGE in content
    if kinds.lists and (has_images or not kinds.texts):
        parts = [
            {"type": "image"} if piece == _IMAGE else {"type": "text", "text": piece}
            for part in content.split(_NEXT)
            for piece in _pieces(part)
        ]
        return {**message, "content": parts}
    if not has_images:
        return message
    return {**message, "content": content.replace(_NEXT, "\n").replace(_IMAGE, placeholder)}


def _pieces(part: str) -> list[str]:
    """Return a part in pieces of text and of one image each: turns that were joined have both."""
    if _IMAGE not in part:
        return [part]
    pieces = part.replace(_IMAGE, f"{_NEXT}{_IMAGE}{_NEXT}").split(_NEXT)
    return [piece for piece in pieces if piece]
