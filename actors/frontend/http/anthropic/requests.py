"""Requests in Anthropic's shape, and the chats that they mean."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from pageant.actors.frontend.http.openai.chat import ChatRequest, as_chat
from pageant.actors.frontend.http.openai.conversation import CalledFunction, CalledTool, Turn
from pageant.protocol.errors import BadRequest


class Text(msgspec.Struct, kw_only=True, tag="text", tag_field="type"):
    """A text."""

    text: str
    cache_control: Any = None
    citations: Any = None


class Thinking(msgspec.Struct, kw_only=True, tag="thinking", tag_field="type"):
    """What the model thought in an earlier turn."""

    thinking: str
    signature: str = ""


class ToolUse(msgspec.Struct, kw_only=True, tag="tool_use", tag_field="type"):
    """A call that the model made."""

    id: str
    name: str
    input: dict[str, Any]
    cache_control: Any = None


class ToolResult(msgspec.Struct, kw_only=True, tag="tool_result", tag_field="type"):
    """What came of it."""

    tool_use_id: str
    content: str | tuple[Text, ...] = ""
    is_error: bool | None = None
    cache_control: Any = None


Part = Text | Thinking | ToolUse | ToolResult


class Tool(msgspec.Struct, kw_only=True):
    """A function that the model may call."""

    name: str
    input_schema: dict[str, Any]
    description: str | None = None
    type: str | None = None
    cache_control: Any = None


class ToolChoice(msgspec.Struct, kw_only=True):
    """Which of them."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class MessageTurn(msgspec.Struct, kw_only=True):
    """One message."""

    role: Literal["user", "assistant", "system"]
    content: str | tuple[Part, ...]

    def turns(self) -> list[Turn]:
        """The same as OpenAI has it, where a tool's result is a turn of its own."""
        if isinstance(self.content, str):
            return [Turn(role=self.role, content=self.content)]
        turns = [
            Turn(role="tool", tool_call_id=part.tool_use_id, content=_joined(part.content))
            for part in self.content
            if isinstance(part, ToolResult)
        ]
        texts = [part.text for part in self.content if isinstance(part, Text)]
        thoughts = [part.thinking for part in self.content if isinstance(part, Thinking)]
        calls = [
            CalledTool(id=part.id, function=CalledFunction(name=part.name, arguments=part.input))
            for part in self.content
            if isinstance(part, ToolUse)
        ]
        if texts or thoughts or calls or not turns:
            turns.append(
                Turn(
                    role=self.role,
                    content="".join(texts) if texts or not calls else None,
                    reasoning_content="".join(thoughts) or None,
                    tool_calls=tuple(calls) or None,
                )
            )
        return turns


def _joined(content: str | tuple[Text, ...]) -> str:
    return content if isinstance(content, str) else "".join(part.text for part in content)


NAMES = {  # of a chat's parameters
    **{"response_format": "output_config.format", "structured_outputs": "output_config.format"},
    **{"stop": "stop_sequences", "parallel_tool_calls": "tool_choice"},
}


class CountRequest(msgspec.Struct, kw_only=True):
    """`POST /v1/messages/count_tokens`."""

    messages: tuple[MessageTurn, ...]
    model: str | None = None
    system: str | tuple[Text, ...] | None = None
    tools: tuple[Tool, ...] | None = None
    tool_choice: ToolChoice | None = None
    thinking: dict[str, Any] | None = None

    def chat_fields(self) -> dict[str, Any]:
        """The chat that it means, as fields of a `ChatRequest`.

        A last message of the assistant's is one to go on from.
        """
        turns = [turn for message in self.messages for turn in message.turns()]
        if not turns:
            raise BadRequest("messages is empty; expected at least one message", "messages")
        if self.system is not None:
            turns.insert(0, Turn(role="system", content=_joined(self.system)))
        goes_on = turns[-1].role == "assistant" and not turns[-1].tool_calls
        fields: dict[str, Any] = {
            "model": self.model,
            "messages": tuple(turns),
            "add_generation_prompt": not goes_on,
            "continue_final_message": goes_on,
        }
        if self.tools:
            fields["tools"] = [
                {
                    "type": "function",
                    "function": {
                        **{"name": tool.name, "parameters": tool.input_schema},
                        **({"description": tool.description} if tool.description is not None else {}),
                    },
                }
                for tool in self.tools
            ]
            fields["tool_choice"] = _choice(self.tool_choice)
            if self.tool_choice is not None and self.tool_choice.disable_parallel_tool_use:
                fields["parallel_tool_calls"] = False
        return fields

    def chat(self) -> ChatRequest:
        """The chat that it means."""
        return as_chat(self.chat_fields(), NAMES)

    def fields_without_effect(self) -> list[str]:
        """See `Generation`."""
        return [name for name in ("thinking",) if getattr(self, name) is not None]


class MessagesRequest(CountRequest, kw_only=True):
    """`POST /v1/messages`."""

    max_tokens: int
    stop_sequences: tuple[str, ...] | None = None
    stream: bool | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    metadata: dict[str, Any] | None = None
    service_tier: str | None = None
    output_config: dict[str, Any] | None = None

    def chat_fields(self) -> dict[str, Any]:
        """See `CountRequest`."""
        form = (self.output_config or {}).get("format")
        if isinstance(form, dict) and form.get("type") == "json_schema":
            form = {"type": "json_schema", "json_schema": {"name": "output", "schema": form.get("schema")}}
        return super().chat_fields() | {
            "response_format": form,
            **{"max_tokens": self.max_tokens, "stop": self.stop_sequences, "stream": self.stream},
            **{"temperature": self.temperature, "top_k": self.top_k, "top_p": self.top_p},
            "user": self._user,
        }

    @property
    def _user(self) -> str | None:
        user = (self.metadata or {}).get("user_id")
        return user if isinstance(user, str) else None

    def fields_without_effect(self) -> list[str]:
        """See `ResponseRequest`."""
        return [name for name in ("thinking", "service_tier") if getattr(self, name) is not None]


def _choice(choice: ToolChoice | None) -> Any:
    if choice is None or choice.type == "auto":
        return "auto"
    if choice.type == "tool":
        return {"type": "function", "function": {"name": choice.name}}
    return "required" if choice.type == "any" else "none"
