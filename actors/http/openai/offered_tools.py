"""Tools as clients offer them in chats: functions, custom tools that work as functions, and kinds that are left out."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from pageant.actors.http.chat.tools import ChosenFunction, ChosenTool, Tool, ToolChoice, ToolFunction
from pageant.actors.parsers.arguments import HeldText
from pageant.actors.parsers.formats import Formats
from pageant.actors.parsers.lark_strings import Unescapable, escaped_grammar
from pageant.actors.parsers.tool_format import Held
from pageant.protocol.errors import BadRequest

UNHELD = "tools:custom.format"
CUSTOM_PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
    "additionalProperties": False,
}
"""Those of a custom tool, whose input is one text."""


class CustomTool(msgspec.Struct, kw_only=True):
    """A tool that is called with a text. `format` may say by a grammar how the text is written: the model is told.

    The text is held to that grammar, where the model has a form of calls and the grammar can be applied (`unheld`).
    """

    name: str
    description: str | None = None
    format: dict[str, Any] | None = None

    def function(self) -> ToolFunction:
        """Return the function with one argument that stands for it."""
        lines = [self.description] if self.description else []
        grammar = _grammar(self.format)
        if grammar is not None:
            syntax = grammar.get("syntax") or "the following"
            lines.append(f"The input follows this grammar ({syntax}):\n{grammar['definition']}")
        return ToolFunction(
            name=self.name, description="\n\n".join(lines) or None, parameters=CUSTOM_PARAMETERS
        )

    def held_arguments(self) -> Held | None:
        """Return what its calls' arguments are held to; None where they are free."""
        grammar = _grammar(self.format)
        if grammar is None or not _can_hold(grammar):
            return None
        if grammar["syntax"] == "lark":
            return HeldText("input", grammar["definition"])
        text = {"type": "string", "pattern": f"^(?:{grammar['definition']})$"}
        return {**CUSTOM_PARAMETERS, "properties": {"input": text}}


def _grammar(form: Any) -> dict[str, Any] | None:
    """Return the grammar of a custom tool's format, which chats have within `grammar`, and responses have not."""
    if not isinstance(form, dict):
        return None
    grammar = form.get("grammar") if isinstance(form.get("grammar"), dict) else form
    return grammar if isinstance(grammar, dict) and isinstance(grammar.get("definition"), str) else None


def _can_hold(grammar: dict[str, Any]) -> bool:
    """Tell whether a text within a call can be held to a grammar: to a regular expression, or to one in Lark's form
    whose parts can be escaped as JSON escapes the text.
    """
    if grammar.get("syntax") != "lark":
        return grammar.get("syntax") == "regex"
    try:
        escaped_grammar(grammar["definition"])
    except Unescapable:
        return False
    return True


def unheld(form: Any, formats: Formats) -> bool:
    """Tell whether a custom tool's format has a grammar that calls are not held to: it cannot be applied, or the model
    has no form of calls.
    """
    grammar = _grammar(form)
    return grammar is not None and (formats.tools is None or not _can_hold(grammar))


_TOLD = ("function", "custom")


class OfferedTool(msgspec.Struct, kw_only=True):
    """A tool of a request's. A function's fields may stand beside its type, as in the Responses API."""

    type: str = "function"
    function: ToolFunction | None = None
    custom: CustomTool | None = None
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None

    @staticmethod
    def is_read(given: dict[str, Any]) -> bool:
        """Tell whether its fields are read. Other types may have other values under the same names."""
        return given.get("type", "function") in _TOLD

    @property
    def is_told(self) -> bool:
        """Tell whether the model is offered the tool. Other kinds need a service elsewhere."""
        return self.type in _TOLD

    def tool(self, place: str) -> Tool:
        """Return it as a function.

        Raises:
            BadRequest: it lacks what its type needs.
        """
        if self.type == "custom":
            if self.custom is None:
                raise BadRequest(f"{place} lacks custom, which its type custom needs", "tools")
            return Tool(function=self.custom.function())
        if self.function is not None:
            return Tool(function=self.function)
        if self.name is None:
            raise BadRequest(f"{place} lacks function, which its type function needs", "tools")
        return Tool(
            function=ToolFunction(
                name=self.name,
                description=self.description,
                parameters=self.parameters,
                strict=self.strict,
            )
        )


class AllowedTools(msgspec.Struct, kw_only=True):
    """Selection of the tools, and whether one of them has to be called."""

    tools: tuple[OfferedChoice, ...]
    mode: Literal["auto", "required"] = "auto"


class OfferedChoice(msgspec.Struct, kw_only=True):
    """The tool that has to be called, or those that may be."""

    type: str = "function"
    function: ChosenFunction | None = None
    custom: ChosenFunction | None = None
    name: str | None = None
    allowed_tools: AllowedTools | None = None

    def chosen(self) -> str:
        """Return the tool's name.

        Raises:
            BadRequest: a kind of tool that has none.
        """
        for one in (self.function, self.custom):
            if one is not None:
                return one.name
        if self.name is None:
            raise BadRequest(
                f"tool_choice names no function or custom tool (its type is {self.type!r:.80}); expected one",
                "tool_choice",
            )
        return self.name


Choice = Literal["none", "auto", "required"] | OfferedChoice


def functions_of(tools: tuple[OfferedTool, ...] | None, choice: Choice | None) -> tuple[Tool, ...] | None:
    """Return the tools that a model is told of: as functions, in order, and of `allowed_tools` those alone.

    Raises:
        BadRequest: what is wrong with one of them.
    """
    if not tools:
        return None
    found = tuple(tool.tool(f"tools[{index}]") for index, tool in enumerate(tools) if tool.is_told)
    if isinstance(choice, OfferedChoice) and choice.allowed_tools is not None:
        allowed = {one.chosen() for one in choice.allowed_tools.tools}
        if unknown := allowed - {tool.function.name for tool in found}:
            raise BadRequest(f"tool_choice: there is no tool {min(unknown)!r:.200}", "tool_choice")
        found = tuple(tool for tool in found if tool.function.name in allowed)
    return found or None


def chosen(choice: Choice | None) -> ToolChoice | None:
    """Return which of the tools that are told of has to be called.

    Raises:
        BadRequest: it names none.
    """
    if not isinstance(choice, OfferedChoice):
        return choice
    if choice.allowed_tools is not None:
        return choice.allowed_tools.mode
    return ChosenTool(function=ChosenFunction(name=choice.chosen()))


def held_arguments(tools: tuple[OfferedTool, ...] | None) -> dict[str, Held]:
    """Return what calls of custom tools are held to, by name."""
    found = {one.custom.name: one.custom.held_arguments() for one in tools or () if one.custom is not None}
    return {name: held for name, held in found.items() if held is not None}


def customs(tools: tuple[OfferedTool, ...] | None) -> frozenset[str]:
    """Return the names of custom tools."""
    return frozenset(tool.custom.name for tool in tools or () if tool.custom is not None)


def left_out(tools: tuple[OfferedTool, ...] | None, formats: Formats) -> list[str]:
    """Return the places of tools that no model is told of, and of grammars that calls are not held to."""
    kinds = [f"tools:{tool.type}"[:128] for tool in tools or () if not tool.is_told]
    customs = [tool.custom for tool in tools or () if tool.custom is not None]
    return kinds + [UNHELD for custom in customs if unheld(custom.format, formats)]
