"""Conversations as clients send them, for the tokenizer."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from pageant.actors.http.chat.turns import ContentPart, Turn
from pageant.actors.http.naming import Names
from pageant.actors.http.reading import as_json
from pageant.protocol.errors import BadRequest
from pageant.protocol.tokenizing import ChatMessage, TokenizeChat

__all__ = [
    *("ConversationRules", "DEFAULT_RULES", "TEMPLATES", "VOLATILE_LINES", "check_lines", "effort_variables"),
    "tokenize_chat",
]

MESSAGES_MAX = 4096
TEMPLATE_KWARGS_BYTES_MAX = 65_536
TEMPLATE_BYTES_MAX = 65_536
TEMPLATES: Names = {"template_kwargs": "chat_template_kwargs"}
TOOLS_BYTES_MAX = 1_048_576
VOLATILE_LINES = (r"x-anthropic-billing-header:.*",)
"""Lines that known clients put in front of a prompt, and that differ from request to request: Claude Code's."""


def effort_variables(effort: str) -> dict[str, Any]:
    """Return the variables by which chat templates learn how much the model thinks, if at all.

    Templates have no common name for whether it does: `thinking` is DeepSeek's and Granite's.
    """
    thinks = effort != "none"
    return {"reasoning_effort": effort, "enable_thinking": thinks, "thinking": thinks}


@dataclass(frozen=True)
class ConversationRules:
    """The operator's rules for conversations.

    Attributes:
        volatile_lines: regular expressions of lines that are left out at the beginning of a system message's part.
            They change with every request, and no prefix would ever be found in the cache.
        takes_templates: requests may bring chat templates of their own.
        template_kwargs: variables of templates, where a request does not set them.
    """

    volatile_lines: tuple[str, ...] = VOLATILE_LINES
    takes_templates: bool = False
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)

    def stable(self, turns: Sequence[Turn]) -> Sequence[Turn]:
        """Return the turns without volatile lines at the front; they are not changed themselves."""
        if not self.volatile_lines or not turns or turns[0].role not in ("system", "developer"):
            return turns
        pattern = re.compile(rf"(?:(?:{'|'.join(f'(?:{one})' for one in self.volatile_lines)})(?:\r?\n|\Z))+")
        kept, *rest = turns
        content = kept.content
        if isinstance(content, str):
            content = _without(pattern, content)
        elif content is not None:
            parts = [_part_without(pattern, part) for part in content]
            content = tuple(part for part in parts if part is not None)
        kept = msgspec.structs.replace(kept, content=content)
        return rest if rest and not content and turns[0].content else [kept, *rest]


DEFAULT_RULES = ConversationRules()


def check_lines(lines: Sequence[str]) -> None:
    """Refuse volatile lines that are no regular expressions.

    Raises:
        ValueError: names the line.
    """
    for line in lines:
        try:
            re.compile(line)
        except re.error as error:
            found = f"volatile_prompt_lines has {line!r:.200}"
            raise ValueError(f"{found}; expected a regular expression ({error})") from None


def _without(pattern: re.Pattern[str], text: str) -> str:
    found = pattern.match(text)
    return text[found.end() :] if found is not None else text


def _part_without(pattern: re.Pattern[str], part: str | ContentPart) -> str | ContentPart | None:
    """Return a part without volatile lines; None where it has nothing else."""
    text = part if isinstance(part, str) else part.text
    if text is None or pattern.match(text) is None:
        return part
    rest = _without(pattern, text)
    if not rest:
        return None
    return rest if isinstance(part, str) else msgspec.structs.replace(part, text=rest)


def tokenize_chat(
    turns: Sequence[Turn],
    *,
    add_generation_prompt: bool = True,
    continue_final_message: bool = False,
    add_special_tokens: bool = False,
    tools: Sequence[Any] | None = None,
    template_kwargs: dict[str, Any] | None = None,
    documents: Sequence[Any] | None = None,
    chat_template: str | None = None,
    rules: ConversationRules = DEFAULT_RULES,
) -> TokenizeChat:
    """A conversation as a request to the tokenizer.

    Raises:
        BadRequest: empty, too long, or a message that cannot be rendered; names the index.
    """
    if not 1 <= len(turns) <= MESSAGES_MAX:
        what = (
            "is empty; expected at least one message" if not turns else f"has {len(turns)} messages; at most"
        )
        raise BadRequest(f"messages {what}{f' {MESSAGES_MAX} are taken' if turns else ''}", "messages")
    if continue_final_message and add_generation_prompt:
        raise BadRequest(
            "continue_final_message is true; expected add_generation_prompt to be false with it",
            "continue_final_message",
        )
    if template_kwargs:
        as_json(template_kwargs, "chat_template_kwargs", TEMPLATE_KWARGS_BYTES_MAX)
    if rules.template_kwargs:
        template_kwargs = {**rules.template_kwargs, **(template_kwargs or {})}
    if documents is not None:
        as_json(documents, "documents", TOOLS_BYTES_MAX)
        template_kwargs = {"documents": documents, **(template_kwargs or {})}
    _check_template(chat_template, rules)
    return TokenizeChat(
        messages=_messages(turns, rules),
        add_generation_prompt=add_generation_prompt,
        continue_final_message=continue_final_message,
        add_special_tokens=add_special_tokens,
        tools=as_json(tools, "tools", TOOLS_BYTES_MAX) if tools else None,
        template_kwargs=msgspec.json.encode(template_kwargs).decode() if template_kwargs else None,
        chat_template=chat_template,
    )


def _messages(turns: Sequence[Turn], rules: ConversationRules) -> tuple[ChatMessage, ...]:
    kept = rules.stable(turns)
    left_out = len(turns) - len(kept)
    return tuple(turn.message(f"messages[{place}]") for place, turn in enumerate(kept, left_out))


def _check_template(template: str | None, rules: ConversationRules) -> None:
    if template is None:
        return
    if not rules.takes_templates:
        raise BadRequest(
            "chat_template is given; expected none: the model's own is used, unless the server's operator allows "
            "others (trust_request_chat_template)",
            "chat_template",
        )
    if "{" not in template:
        raise BadRequest(
            f"chat_template is {template!r:.200}, which uses no message; expected the text of a Jinja template (files "
            "are named by the server's operator, with --chat-template)",
            "chat_template",
        )
    if (size := len(template.encode("utf-8", "replace"))) > TEMPLATE_BYTES_MAX:
        raise BadRequest(
            f"chat_template has {size} bytes; at most {TEMPLATE_BYTES_MAX} are taken", "chat_template"
        )
