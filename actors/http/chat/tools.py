"""Tools that a model may call, and the constraint on an answer that calls them."""

from __future__ import annotations

import re
from typing import Any, Literal

import msgspec

from pageant.actors.http.chat.structure import Structure
from pageant.actors.parsers.formats import Formats
from pageant.actors.parsers.tool_format import ANY_OBJECT, Held
from pageant.protocol.errors import BadRequest
from pageant.protocol.structured_outputs import StructuredOutputsParams

TOOLS_MAX = 1024
_DEFINITIONS = ("$defs", "definitions")
_NAME = re.compile(r"[A-Za-z0-9_.:-]{1,128}")


class ToolFunction(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A function that can be called."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(msgspec.Struct, kw_only=True):
    """A tool, which is a function. Templates show it as it is encoded: with its type first, as clients write it."""

    type: Literal["function"] = "function"
    function: ToolFunction


class ChosenFunction(msgspec.Struct, kw_only=True):
    """The name of a function that must be called."""

    name: str


class ChosenTool(msgspec.Struct, kw_only=True):
    """The tool that has to be called."""

    function: ChosenFunction
    type: Literal["function"] = "function"


ToolChoice = Literal["none", "auto", "required"] | ChosenTool


class Tools(msgspec.Struct, frozen=True, kw_only=True):
    """A request's tools, and which of them may be called. `held` is what arguments of some always follow."""

    tools: tuple[Tool, ...]
    choice: ToolChoice
    one: bool
    held: dict[str, Held] = msgspec.field(default_factory=dict)

    @classmethod
    def of(
        cls,
        tools: tuple[Tool, ...] | None,
        choice: ToolChoice | None,
        parallel: bool | None,
        held: dict[str, Held] | None = None,
    ) -> Tools | None:
        """Return the tools that may be called; None if none may.

        Args:
            held: what arguments follow though their tool is not `strict`, by name.

        Raises:
            BadRequest: a name is invalid, or is not there.
        """
        if not tools:
            if choice in (None, "none", "auto"):
                return None
            raise BadRequest("tool_choice is given; expected tools with it", "tool_choice")
        if len(tools) > TOOLS_MAX:
            raise BadRequest(f"tools has {len(tools)} entries; at most {TOOLS_MAX} are taken", "tools")
        for index, tool in enumerate(tools):
            if not _NAME.fullmatch(tool.function.name):
                raise BadRequest(
                    f"tools[{index}].function.name is {tool.function.name!r:.200}; expected letters, digits and _.:-",
                    "tools",
                )
        if isinstance(choice, ChosenTool) and all(
            tool.function.name != choice.function.name for tool in tools
        ):
            raise BadRequest(f"tool_choice: there is no tool {choice.function.name!r:.200}", "tool_choice")
        if choice == "none":
            return None
        return cls(
            tools=tools,
            choice=choice or "auto",
            one=parallel is False or isinstance(choice, ChosenTool),
            held=held or {},
        )

    @property
    def is_forced(self) -> bool:
        """Tell whether a tool must be called."""
        return self.choice != "auto"

    def _schemas(self) -> dict[str, Held | None]:
        """Return what the arguments of callable tools are held to, by name; None where the arguments are free."""
        chosen = self.choice.function.name if isinstance(self.choice, ChosenTool) else None
        functions = [tool.function for tool in self.tools if chosen in (None, tool.function.name)]
        return {
            one.name: arguments_schema(one.parameters)
            if one.strict or (self.is_forced and one.strict is not False)
            else None
            for one in functions
        } | {one.name: self.held[one.name] for one in functions if one.name in self.held}

    def structure(self, formats: Formats, text: Structure) -> Structure:
        """Return the constraint on the answer; `text` is the constraint on its text, if it has any."""
        form, schemas = formats.forced if self.is_forced else formats.tools, self._schemas()
        is_strict = any(tool.function.strict or tool.function.name in self.held for tool in self.tools)
        if form is None or not (self.is_forced or (is_strict and text.asked is None) or _is_json(text)):
            return text
        if self.is_forced:
            tree = form.calls(schemas, one=self.one)
        elif text.asked is None:
            tree = form.text_with_calls(schemas, one=self.one)
        else:
            tree = form.json_or_calls(_json_schema(text.asked), schemas, one=self.one)
        return Structure(StructuredOutputsParams(structural_tag={"format": tree}), "tools")  # type: ignore[arg-type]


def arguments_schema(parameters: dict[str, Any] | None) -> dict[str, Any]:
    """Return the schema of a call's arguments, which are an object, whatever a tool's parameters leave out.

    Raises:
        BadRequest: the parameters are of another type.
    """
    given = {key: value for key, value in (parameters or {}).items() if value is not None}
    if {"$ref", "anyOf", "oneOf", "allOf"}.isdisjoint(given) or "type" in given:
        kind = given.get("type", "object")
        if kind != "object" and not (isinstance(kind, list) and "object" in kind):
            raise BadRequest(f"tools: parameters have the type {kind!r:.80}; expected object", "tools")
        return {**given, "type": "object"}
    return {"allOf": [given, {"type": "object"}], **{key: given[key] for key in _DEFINITIONS if key in given}}


def _is_json(text: Structure) -> bool:
    return text.asked is not None and text.asked.kind in ("json", "json_object")


def _json_schema(asked: StructuredOutputsParams) -> Any:
    return msgspec.json.decode(asked.json) if asked.json is not None else ANY_OBJECT
