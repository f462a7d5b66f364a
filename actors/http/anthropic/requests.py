"""Requests in Anthropic's shape, and the chats that they mean."""

from __future__ import annotations

from typing import Any

import msgspec

from pageant.actors.frontend.prompts import RequestSettings, check_settings
from pageant.actors.http.anthropic.content import Block, MessageTurn
from pageant.actors.http.anthropic.tools import Tool, ToolChoice
from pageant.actors.http.chat.conversation import (
    DEFAULT_RULES,
    TEMPLATES,
    ConversationRules,
    effort_variables,
    tokenize_chat,
)
from pageant.actors.http.chat.request import Chat, params_of
from pageant.actors.http.chat.structure import ResponseFormat, Structure, asked_for
from pageant.actors.http.chat.tools import Tool as ChatTool
from pageant.actors.http.chat.tools import Tools
from pageant.actors.http.chat.turns import ContentPart, Turn
from pageant.actors.http.naming import Names, written_as
from pageant.actors.http.reading import convert
from pageant.actors.http.served import Served
from pageant.actors.http.tenants import tenant_of
from pageant.actors.parsers.formats import NO_FORMATS, Formats
from pageant.protocol.errors import BadRequest
from pageant.protocol.sampling import SamplingParams
from pageant.protocol.tokenizing import TokenizeChat

NAMES: Names = {
    **TEMPLATES,
    "prompt": "messages",
    "stop": "stop_sequences",
    "structured_outputs": "output_config.format",
    "response_format": "output_config.format",
    "thinking_token_budget": "thinking.budget_tokens",
}
"""The client's names of parameters, by the names inside."""


class _Format(msgspec.Struct, kw_only=True):
    """The format of an answer, at the place where errors look for it."""

    response_format: ResponseFormat | None = None


class CountRequest(msgspec.Struct, kw_only=True):
    """`POST /v1/messages/count_tokens`."""

    messages: tuple[MessageTurn, ...]
    model: str | None = None
    system: str | tuple[Block, ...] | None = None
    tools: tuple[Tool, ...] | None = None
    tool_choice: ToolChoice | None = None
    thinking: dict[str, Any] | None = None

    def conversation(self, rules: ConversationRules = DEFAULT_RULES) -> TokenizeChat:
        """Return the messages, as the tokenizer takes them. A last message of the assistant's is one to go on from.

        Raises:
            BadRequest: what is wrong with one of them.
        """
        with written_as(NAMES):
            turns = self._turns()
            goes_on = turns[-1].role == "assistant" and not turns[-1].tool_calls
            is_shown = self.tool_choice is None or self.tool_choice.type != "none"
            return tokenize_chat(
                turns,
                add_generation_prompt=not goes_on,
                continue_final_message=goes_on,
                tools=self._offered() if is_shown else None,
                template_kwargs=self.template_kwargs(),
                rules=rules,
            )

    def template_kwargs(self) -> dict[str, Any]:
        """Return further variables of the chat template. Templates have no common name for whether the model thinks."""
        if self.thinking is None:
            return {}
        thinks = self.thinking.get("type") != "disabled"
        return {"enable_thinking": thinks, "thinking": thinks}

    def _turns(self) -> list[Turn]:
        messages = enumerate(self.messages)
        turns = [turn for index, message in messages for turn in message.turns(f"messages[{index}]")]
        if not turns:
            raise BadRequest("messages is empty; expected at least one message", "messages")
        return turns if self.system is None else [self._system(self.system), *turns]

    def _offered(self) -> tuple[ChatTool, ...]:
        """Return the tools that the model is offered."""
        return tuple(tool.chat_tool(f"tools[{i}]") for i, tool in enumerate(self.tools or ()) if tool.is_told)

    def callable(self) -> Tools | None:
        """Return the tools that may be called.

        Raises:
            BadRequest: what is wrong with them.
        """
        if not self.tools:
            return None
        choice = self.tool_choice
        parallel = False if choice is not None and choice.disable_parallel_tool_use else None
        return Tools.of(self._offered(), None if choice is None else choice.chat_choice(), parallel)

    @staticmethod
    def _system(system: str | tuple[Block, ...]) -> Turn:
        """Return the system prompt. Blocks stay apart, so that a volatile line at the front of one is found."""
        if isinstance(system, str):
            return Turn(role="system", content=system)
        texts = [block.said(f"system[{index}]") for index, block in enumerate(system)]
        return Turn(
            role="system", content=tuple(ContentPart(text=text) for text in texts if text is not None)
        )

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

    def template_kwargs(self) -> dict[str, Any]:
        """See `CountRequest`."""
        effort = (self.output_config or {}).get("effort")
        if effort is None:
            return super().template_kwargs()
        if not isinstance(effort, str):
            name = "output_config.effort"
            raise BadRequest(f"{name} is {effort!r:.80}; expected a text", name)
        return {**effort_variables(effort), **super().template_kwargs()}

    def chat(self, served: Served, rules: ConversationRules) -> Chat:
        """Return the chat that it means, to a model: one that marks its thoughts keeps to their budget.

        Raises:
            BadRequest: what is wrong with it.
        """
        with written_as(NAMES):
            return Chat(
                params=self._params(served),
                conversation=self.conversation(rules),
                settings=self._settings(),
                tools=self.callable(),
                structure=self._structure(),
                stream=bool(self.stream),
                names=NAMES,
            )

    def _settings(self) -> RequestSettings:
        tenant = tenant_of(self._user)
        return check_settings({"priority": 0, "tenant": tenant, "cache_salt": None, "deadline": None})

    def _params(self, served: Served) -> SamplingParams:
        given = {
            "temperature": self.temperature,
            "top_k": self.top_k,
            "top_p": self.top_p,
            "stop": self.stop_sequences,
            "thinking_token_budget": None if served.formats.reasoning is None else self._budget,
        }
        given = {name: value for name, value in given.items() if value is not None}
        return params_of({**given, "max_tokens": self.max_tokens}, served.limits.defaults)

    def _structure(self) -> Structure:
        """Return the constraint on the answer's text."""
        form = (self.output_config or {}).get("format")
        if isinstance(form, dict) and form.get("type") == "json_schema":
            form = {"type": "json_schema", "json_schema": {"name": "output", "schema": form.get("schema")}}
        return asked_for(convert({"response_format": form}, _Format).response_format, None)

    @property
    def _user(self) -> str | None:
        user = (self.metadata or {}).get("user_id")
        return user if isinstance(user, str) else None

    def fields_without_effect(self, formats: Formats = NO_FORMATS) -> list[str]:
        """See `CountRequest`."""
        return super().fields_without_effect(formats) + ["service_tier"] * (self.service_tier is not None)
