"""Conversations as clients send them, for the tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec

from pageant.actors.frontend.http.naming import Names
from pageant.actors.frontend.http.reading import as_json
from pageant.protocol.errors import BadRequest
from pageant.protocol.tokenizing import ChatMessage, TokenizeChat, ToolCall

MESSAGES_MAX = 4096
TEMPLATE_KWARGS_BYTES_MAX = 65_536
TEMPLATES: Names = {"template_kwargs": "chat_template_kwargs"}
TOOLS_BYTES_MAX = 1_048_576


class ContentPart(msgspec.Struct, kw_only=True):
    """A part of a message's content: text, or what is refused by its `type`. `cache_control`, a mark for Anthropic's
    API, is not needed: all is cached."""

    type: str
    text: str | None = None
    cache_control: Any = None


class CalledFunction(msgspec.Struct, kw_only=True):
    """What was called."""

    name: str
    arguments: str | dict[str, Any] = "{}"


class CalledTool(msgspec.Struct, kw_only=True):
    """A call that the model made in an earlier turn."""

    function: CalledFunction
    id: str = ""
    type: str = "function"
    index: int | None = None


class Turn(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One message of a conversation. The last three are nothing, as clients write it who send back what they got."""

    role: str
    content: str | tuple[ContentPart, ...] | None = None
    name: str | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    tool_calls: tuple[CalledTool, ...] | None = None
    tool_call_id: str | None = None
    annotations: Annotated[list[Any], msgspec.Meta(max_length=0)] | None = None
    audio: None = None
    function_call: None = None

    def text(self, place: str) -> str | None:
        """The content's text, of several parts with a line for each to begin on."""
        if self.content is None or isinstance(self.content, str):
            return self.content
        texts = []
        for index, part in enumerate(self.content):
            if part.type != "text":
                raise BadRequest(
                    f"{place}.content[{index}].type is {part.type!r:.80}; expected 'text': images, audio and files are "
                    "not taken",
                    "messages",
                )
            if part.text is None:
                raise BadRequest(f"{place}.content[{index}] has no text", "messages")
            texts.append(part.text)
        return "\n".join(texts)

    def message(self, place: str) -> ChatMessage:
        """The turn, as the tokenizer takes it. `developer`, which few templates know, is a newer word for `system`."""
        text = self.text(place)
        if text is None and not self.tool_calls and not self.reasoning_content:
            text = ""
        calls = [
            ToolCall(
                id=call.id,
                name=call.function.name,
                arguments=(
                    call.function.arguments
                    if isinstance(call.function.arguments, str)
                    else msgspec.json.encode(call.function.arguments).decode()
                ),
            )
            for call in self.tool_calls or ()
        ]
        return ChatMessage(
            role="system" if self.role == "developer" else self.role,
            content=text,
            name=self.name,
            reasoning_content=self.reasoning_content,
            tool_calls=tuple(calls),
            tool_call_id=self.tool_call_id,
        )


def tokenize_chat(
    turns: Sequence[Turn],
    *,
    add_generation_prompt: bool = True,
    continue_final_message: bool = False,
    add_special_tokens: bool = False,
    tools: Sequence[Any] | None = None,
    template_kwargs: dict[str, Any] | None = None,
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
    return TokenizeChat(
        messages=tuple(turn.message(f"messages[{index}]") for index, turn in enumerate(turns)),
        add_generation_prompt=add_generation_prompt,
        continue_final_message=continue_final_message,
        add_special_tokens=add_special_tokens,
        tools=as_json(tools, "tools", TOOLS_BYTES_MAX) if tools else None,
        template_kwargs=(
            as_json(template_kwargs, "chat_template_kwargs", TEMPLATE_KWARGS_BYTES_MAX)
            if template_kwargs
            else None
        ),
    )
