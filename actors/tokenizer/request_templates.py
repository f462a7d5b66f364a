"""Chat templates of requests, rendered in a process of their own.

A template is a program. The checkpoint's own is the operator's choice. A request's may loop without end or
build texts without bound, which jinja's sandbox does not prevent. The process has bounds of time and memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any

import msgspec

from pageant.actors.runtime.isolation import IsolatedDeath, IsolatedLimits, Isolation
from pageant.models.chat_template import ChatTemplateError, ChatTemplates

__all__ = ["Rendering", "RequestTemplates", "open_renderer"]

LIMITS = IsolatedLimits(seconds=2.0, memory_bytes=256 << 20)
TEMPLATES_KEPT = 16
_ORIGIN = "the request"
_TEXT, _REFUSED = b"t", b"r"


class Rendering(msgspec.Struct, frozen=True):
    """Arguments of a rendering; `now` is the wall clock's time."""

    template: str
    messages: list[dict[str, Any]]
    add_generation_prompt: bool
    continue_final_message: bool
    tools: list[Any] | None
    template_kwargs: dict[str, Any]
    now: datetime


class RequestTemplates:
    """Renders requests' templates. May be used by several threads; its processes start with the first call.

    Args:
        special_tokens: the tokenizer's special tokens, by their names.
    """

    def __init__(self, special_tokens: Mapping[str, str], limits: IsolatedLimits = LIMITS) -> None:
        argument = msgspec.json.encode(special_tokens).decode()
        self._isolation = Isolation(f"{__name__}:open_renderer", argument, limits)

    def render(self, asked: Rendering) -> str:
        """Return the prompt. Blocks.

        Raises:
            ChatTemplateError: the template fails, refuses the messages, or takes too much time or memory.
        """
        try:
            answer = self._isolation.call(msgspec.msgpack.encode(asked))
        except (IsolatedDeath, OSError) as error:
            raise ChatTemplateError(f"chat_template cannot be rendered: {error}") from None
        text = answer[1:].decode()
        if answer[:1] == _REFUSED:
            raise ChatTemplateError(text)
        return text

    def close(self) -> None:
        """End the processes."""
        self._isolation.close()


def open_renderer(argument: str) -> Callable[[bytes], bytes]:
    """Return the function that renders an encoded `Rendering`; its answer tells whether it is a text or an
    error.
    """
    special_tokens = msgspec.json.decode(argument, type=dict[str, str])
    clock = [datetime.min]

    @lru_cache(TEMPLATES_KEPT)
    def templates(source: str) -> ChatTemplates:
        return ChatTemplates(
            {"default": source}, special_tokens=special_tokens, origin=_ORIGIN, now=lambda: clock[0]
        )

    def render(data: bytes) -> bytes:
        asked = msgspec.msgpack.decode(data, type=Rendering)
        clock[0] = asked.now
        try:
            found = templates(asked.template)
            text = found.render(
                found.fit(asked.messages),
                add_generation_prompt=asked.add_generation_prompt,
                continue_final_message=asked.continue_final_message,
                tools=asked.tools,
                template_kwargs=asked.template_kwargs,
            )
        except ChatTemplateError as error:
            return _REFUSED + f"chat_template: {error}".encode(errors="backslashreplace")
        return _TEXT + text.encode(errors="replace")

    return render
