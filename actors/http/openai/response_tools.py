"""Tools of `/v1/responses`, and what their calls look like there."""

from __future__ import annotations

from typing import Any

import msgspec

from pageant.actors.http.openai.client_tools import CLIENT_TOOLS
from pageant.actors.http.openai.offered_tools import unheld
from pageant.actors.parsers.formats import Formats
from pageant.protocol.errors import BadRequest

__all__ = ["CallForm", "ResponseTool", "call_forms", "chat_choice", "chat_tools", "qualified"]

_TOLD = ("function", "custom", "namespace", *CLIENT_TOOLS)


class ResponseTool(msgspec.Struct, kw_only=True):
    """A tool that the model may call: a function, a custom tool, one that clients run, or a namespace of such.

    Other kinds need a service of OpenAI's, and may have other values under the same names.
    """

    type: str = "function"
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    format: dict[str, Any] | None = None
    tools: tuple[ResponseTool, ...] | None = None
    environment: dict[str, Any] | None = None

    @staticmethod
    def is_read(given: dict[str, Any]) -> bool:
        """Tell whether its fields are read. Other types may have other values under the same names."""
        return given.get("type", "function") in _TOLD

    @property
    def is_told(self) -> bool:
        """Tell whether the model is offered the tool."""
        if self.type == "shell" and (self.environment or {}).get("type", "local") != "local":
            return False  # it is to run at OpenAI's
        return self.type in _TOLD

    def chat_tools(self, place: str, namespace: str | None = None) -> list[dict[str, Any]]:
        """Return the same as chats have it.

        Raises:
            BadRequest: it has no name.
        """
        if not self.is_told:
            return []
        if (client := CLIENT_TOOLS.get(self.type)) is not None:
            return [{"type": "function", "function": client.function(self.type)}]
        if self.name is None:
            raise BadRequest(f"{place} has no name; expected one for its type, {self.type}", "tools")
        if self.type == "namespace":
            inner = enumerate(self.tools or ())
            return [
                one
                for index, tool in inner
                for one in tool.chat_tools(f"{place}.tools[{index}]", namespace=self.name)
            ]
        kind, more = self.type, {"parameters": self.parameters, "strict": self.strict}
        if kind == "custom":
            more = {"format": self.format}
        named = {"name": qualified(namespace, self.name), "description": self.description, **more}
        return [{"type": kind, kind: {key: value for key, value in named.items() if value is not None}}]

    def has_unheld(self, formats: Formats) -> bool:
        """Tell whether it is, or has within it, a custom tool whose calls are not held to its grammar."""
        if self.type == "namespace":
            return any(tool.has_unheld(formats) for tool in self.tools or ())
        return self.type == "custom" and unheld(self.format, formats)

    def left_out(self) -> list[str]:
        """Return the types of tools that no model is told of."""
        if not self.is_told:
            return [self.type]
        return [kind for tool in self.tools or () for kind in tool.left_out()]


class CallForm(msgspec.Struct, frozen=True):
    """The form in which a client gets a call: its type, and the tool's name within its namespace."""

    name: str
    namespace: str | None = None
    type: str = "function_call"


def qualified(namespace: str | None, name: str) -> str:
    """Return the name by which a model knows a tool in a namespace."""
    if not namespace:
        return name
    return f"{namespace}{name}" if namespace.endswith("__") else f"{namespace}__{name}"


def chat_tools(tools: tuple[ResponseTool, ...]) -> list[dict[str, Any]]:
    """Return the tools as chats have them, without those that no model is told of.

    Raises:
        BadRequest: one lacks something.
    """
    return [one for index, tool in enumerate(tools) for one in tool.chat_tools(f"tools[{index}]")]


def call_forms(tools: tuple[ResponseTool, ...] | None) -> dict[str, CallForm]:
    """Return how calls of tools are told, by the names that the model knows, where it is not as a function's."""
    forms: dict[str, CallForm] = {}
    for tool in tools or ():
        if tool.type in CLIENT_TOOLS and tool.is_told:
            forms[tool.type] = CallForm(tool.type, type=f"{tool.type}_call")
        for inner in tool.tools or () if tool.type == "namespace" else ():
            if inner.name is not None:
                forms[qualified(tool.name, inner.name)] = CallForm(inner.name, tool.name)
    return forms


def chat_choice(choice: Any) -> Any:
    """Return a choice of a tool as chats have it."""
    if not isinstance(choice, dict):
        return choice
    if choice.get("type") == "allowed_tools":
        tools = choice.get("tools")
        allowed = [chat_choice(one) for one in tools] if isinstance(tools, list) else tools
        return {
            "type": "allowed_tools",
            "allowed_tools": {"mode": choice.get("mode") or "auto", "tools": allowed},
        }
    name, of_type = choice.get("name"), choice.get("type")
    if isinstance(of_type, str) and of_type in CLIENT_TOOLS:
        name = of_type
    if not isinstance(name, str):
        return choice
    namespace = choice.get("namespace")
    name = qualified(namespace if isinstance(namespace, str) else None, name)
    kind = "custom" if of_type == "custom" else "function"
    return {"type": kind, kind: {"name": name}}
