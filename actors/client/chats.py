"""Conversations as users of `LLM.chat` and `Engine.chat` give them: read as those that come over HTTP are."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from pageant.actors.client.tokenizers import template_text
from pageant.actors.frontend.given_images import read_image
from pageant.actors.frontend.given_videos import read_video
from pageant.actors.frontend.prompts import check_text
from pageant.actors.http.chat.conversation import TEMPLATES, ConversationRules, tokenize_chat
from pageant.actors.http.chat.turns import Turn
from pageant.actors.http.naming import written_as
from pageant.protocol.checks import to_builtin
from pageant.protocol.errors import BadRequest, TopologyError
from pageant.protocol.tokenizing import TokenizeChat

log = logging.getLogger("pageant.chat")

OPTIONS = (
    *("add_generation_prompt", "continue_final_message", "tools", "chat_template_kwargs", "chat_template"),
)
"""Keyword arguments that are about how a conversation is rendered."""
RULES = ConversationRules(volatile_lines=(), takes_templates=True)
"""Whoever has the model in hand is its operator."""


def as_conversations(messages: Any) -> list[Any]:
    """Return a list of conversations, a single one being a list of one.

    Raises:
        BadRequest: nothing of the kind.
    """
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Sequence):
        kind = type(messages).__name__
        raise BadRequest(f"messages is a {kind}; expected a list of messages, or of such lists", "messages")
    return [messages] if messages and isinstance(messages[0], Mapping) else list(messages)


def split_options(given: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return keyword arguments in two: those about rendering that are given, and the others."""
    chosen = {name: value for name, value in given.items() if name in OPTIONS and value is not None}
    return chosen, {name: value for name, value in given.items() if name not in OPTIONS}


def check_conversation(messages: object, options: Mapping[str, Any] | None = None) -> TokenizeChat:
    """Return a conversation as a request to the tokenizer.

    Args:
        options: see `OPTIONS`.

    Raises:
        BadRequest: not a list of messages, or something in one of them that is not taken; names the index.
    """
    if isinstance(messages, str | bytes) or not isinstance(messages, Sequence):
        kind = type(messages).__name__
        raise BadRequest(
            f"messages is a {kind}; expected a list of {{'role': ..., 'content': ...}}", "messages"
        )
    turns = [_turn(to_builtin(message), f"messages[{index}]") for index, message in enumerate(messages)]
    chosen = dict(options or {})
    kwargs = chosen.pop("chat_template_kwargs", None)
    _check_options(chosen, kwargs)
    if "chat_template" in chosen:
        chosen["chat_template"] = _template(chosen["chat_template"])
    with written_as(TEMPLATES):
        request = tokenize_chat(turns, template_kwargs=kwargs, rules=RULES, **chosen)
    for index, message in enumerate(request.messages):
        check_text(message.role, f"messages[{index}].role")
        check_text(message.content or "", f"messages[{index}].content")
    return request


def _turn(message: object, place: str) -> Turn:
    if not isinstance(message, Mapping):
        raise BadRequest(f"{place} is a {type(message).__name__}; expected a mapping", "messages")
    known = {key: one for key, one in message.items() if key in Turn.__struct_fields__}
    known = {**known, "content": with_images(known.get("content"), place)} if "content" in known else known
    for key in message.keys() - known.keys():
        log.warning("%s.%.80s has no effect", place, key)
    try:
        turn = msgspec.convert(known, Turn, str_keys=True)
    except msgspec.ValidationError as error:
        complaint, _, where = str(error).partition(" - at `$")
        raise BadRequest(f"{place}{where.rstrip('`')}: {complaint}", "messages") from None
    if turn.text(place) is None and not turn.tool_calls and turn.thoughts() is None:
        raise BadRequest(f"{place}.content is None; expected a text", "messages")
    return turn


_HELD_AS = ("image", "image_pil")


def with_images(content: Any, place: str) -> Any:
    """Return a message's content with images and videos read that are Pillow's or arrays, which no message holds."""
    if not isinstance(content, list | tuple):
        return content
    found = []
    for index, part in enumerate(content):
        held = next(
            (key for key in _HELD_AS if isinstance(part, Mapping) and part.get(key) is not None), None
        )
        if held is not None and part.get("type", held) in _HELD_AS:
            part = {
                "type": "image",
                "image": read_image(part[held], f"{place}.content[{index}].{held}", "messages"),
            }
        elif isinstance(part, Mapping) and part.get("type", "video") == "video" and "video" in part:
            where = f"{place}.content[{index}].video"
            part = {"type": "video", "video": read_video(part["video"], where, part.get("fps"), "messages")}
        found.append(part)
    return found


def _template(given: Any) -> str | None:
    """Return the text of a call's template, which may be named by its file, as a model's may.

    Raises:
        BadRequest: neither a template nor a file.
    """
    written = os.fspath(given) if isinstance(given, os.PathLike) else given
    if not isinstance(written, str):
        raise BadRequest(f"chat_template is {given!r:.80}; expected a template, or its file", "chat_template")
    try:
        return template_text(written)
    except TopologyError as error:
        raise BadRequest(str(error), "chat_template") from None


def _check_options(chosen: Mapping[str, Any], kwargs: Any) -> None:
    for name in ("add_generation_prompt", "continue_final_message"):
        if not isinstance(chosen.get(name, False), bool):
            raise BadRequest(f"{name} is {chosen[name]!r:.80}; expected true or false", name)
    if kwargs is not None and not isinstance(kwargs, dict):
        raise BadRequest(
            f"chat_template_kwargs is a {type(kwargs).__name__}; expected a mapping", "chat_template_kwargs"
        )
    tools = chosen.get("tools")
    if tools is not None and (
        not isinstance(tools, list | tuple) or not all(isinstance(one, Mapping) for one in tools)
    ):
        raise BadRequest(f"tools is {tools!r:.80}; expected a list of mappings", "tools")
