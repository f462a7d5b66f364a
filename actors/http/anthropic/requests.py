"""Requests in Anthropic's shape, and the chats that they mean."""

from __future__ import annotations

from typing import Any

import msgspec

from pageant.actors.http.anthropic.content import Block, MessageTurn
from pageant.actors.http.anthropic.tools import Tool, ToolChoice
from pageant.actors.http.openai.chat import ChatRequest, as_chat
from pageant.actors.http.openai.turns import ContentPart, Turn
from pageant.actors.parsers.formats import NO_FORMATS, Formats
from pageant.protocol.errors import BadRequest

NAMES = {  # of a chat's parameters
    **{"response_format": "output_config.format", "structured_outputs": "output_config.format"},
    **{"stop": "stop_sequences", "parallel_tool_calls": "tool_choice"},
    "thinking_token_budget": "thinking.budget_tokens",
}


class CountRequest(msgspec.Struct, kw_only=True):
    """`POST /v1/messages/count_tokens`."""

    messages: tuple[MessageTurn, ...]
    model: str | None = None
    system: str | tuple[Block, ...] | None = None
    tools: tuple[Tool, ...] | None = None
    tool_choice: ToolChoice | None = None
    thinking: dict[str, Any] | None = None

    def chat_fields(self) -> dict[str, Any]:
        """The chat that it means, as fields of a `ChatRequest`.

        A last message of the assistant's is one to go on from.
        """
        messages = enumerate(self.messages)
        turns = [turn for index, message in messages for turn in message.turns(f"messages[{index}]")]
        if not turns:
            raise BadRequest("messages is empty; expected at least one message", "messages")
        if self.system is not None:
            turns.insert(0, self._system(self.system))
        goes_on = turns[-1].role == "assistant" and not turns[-1].tool_calls
        fields: dict[str, Any] = {
            "model": self.model,
            "messages": tuple(turns),
            "add_generation_prompt": not goes_on,
            "continue_final_message": goes_on,
        }
        if self.thinking is not None:
            thinks = self.thinking.get("type") != "disabled"
            fields["chat_template_kwargs"] = {"enable_thinking": thinks, "thinking": thinks}
        tools = [tool.chat_tool(f"tools[{i}]") for i, tool in enumerate(self.tools or ()) if tool.is_told]
        choice = self.tool_choice
        if tools:
            fields["tools"] = tools
            fields["tool_choice"] = "auto" if choice is None else choice.chat_choice()
            if choice is not None and choice.disable_parallel_tool_use:
                fields["parallel_tool_calls"] = False
        elif self.tools and choice is not None:
            fields["tool_choice"] = choice.chat_choice()
        return fields

    @staticmethod
    def _system(system: str | tuple[Block, ...]) -> Turn:
        """Return the system prompt. Blocks stay apart, so that a volatile line at the front of one is found."""
        if isinstance(system, str):
            return Turn(role="system", content=system)
        texts = [block.said(f"system[{index}]") for index, block in enumerate(system)]
        return Turn(
            role="system", content=tuple(ContentPart(text=text) for text in texts if text is not None)
        )

    def chat(self, formats: Formats = NO_FORMATS) -> ChatRequest:
        """The chat that it means, to a model of these formats: one that marks its thoughts keeps to their budget."""
        budget = {} if formats.reasoning is None else {"thinking_token_budget": self._budget}
        return as_chat(self.chat_fields() | budget, NAMES)

    @property
    def _budget(self) -> Any:
        """Return the most tokens of the model's reasoning, if it is enabled; else None."""
        thinking = self.thinking or {}
        return thinking.get("budget_tokens") if thinking.get("type") == "enabled" else None

    def fields_without_effect(self, formats: Formats = NO_FORMATS) -> list[str]:
        """Return the places of what is known here, and has no effect with a model of these formats."""
        bounded = self._budget is not None and formats.reasoning is not None
        names = ["thinking.budget_tokens"] * ("budget_tokens" in (self.thinking or {}) and not bounded)
        names += [f"tools:{tool.type}"[:128] for tool in self.tools or () if not tool.is_told]
        names += [place for message in self.messages for place in message.passed_over()]
        return list(dict.fromkeys(names))


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
            **{"user": self._user, "reasoning_effort": (self.output_config or {}).get("effort")},
        }

    @property
    def _user(self) -> str | None:
        user = (self.metadata or {}).get("user_id")
        return user if isinstance(user, str) else None

    def fields_without_effect(self, formats: Formats = NO_FORMATS) -> list[str]:
        """See `CountRequest`."""
        return super().fields_without_effect(formats) + ["service_tier"] * (self.service_tier is not None)
