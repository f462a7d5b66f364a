"""Constraints on an answer, from `response_format`, `structured_outputs` and tools; and the parser that reads
it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Literal

import msgspec

from pageant.actors.http.naming import written_as
from pageant.actors.parsers.base import OutputParser
from pageant.actors.parsers.custom_calls import CustomCalls
from pageant.actors.parsers.formats import Formats
from pageant.actors.parsers.reading import ChatParser
from pageant.actors.parsers.tool_format import ANY_OBJECT, Held, ToolFormat
from pageant.protocol.errors import BadRequest
from pageant.protocol.json_schemas import unenforced
from pageant.protocol.structured_outputs import StructuredOutputsParams

TOOLS_MAX = 1024
_DEFINITIONS = ("$defs", "definitions")
_NAME = re.compile(r"[A-Za-z0-9_.:-]{1,128}")


class SchemaFormat(msgspec.Struct, kw_only=True):
    """`strict` changes nothing: a schema is always kept to."""

    name: str = "output"
    schema: dict[str, Any] | None = None
    description: str | None = None
    strict: bool | None = None


class ResponseFormat(msgspec.Struct, kw_only=True):
    """`response_format`: text, a JSON object, JSON by a schema, or structural tags.

    `schema` is a schema at the place where llama.cpp and others have it, of a `json_object` too.
    """

    type: Literal["text", "json_object", "json_schema", "structural_tag"]
    json_schema: SchemaFormat | None = None
    schema: dict[str, Any] | None = None
    format: dict[str, Any] | None = None
    structures: tuple[dict[str, Any], ...] | None = None
    triggers: tuple[str, ...] | None = None

    def asked(self) -> StructuredOutputsParams | None:
        """Return what it asks for.

        Raises:
            BadRequest: it lacks what its type needs, or has what its type has no use for.
        """
        schema = self._schema()
        if self.type == "text":
            return None
        if schema is not None:
            return StructuredOutputsParams(json=schema)  # type: ignore[arg-type]
        if self.type == "json_object":
            return StructuredOutputsParams(json_object=True)
        if self.type == "structural_tag":
            given = {name: getattr(self, name) for name in ("format", "structures", "triggers")}
            tree = {name: value for name, value in given.items() if value is not None}
            return StructuredOutputsParams(structural_tag=msgspec.to_builtins(tree))
        raise BadRequest(
            "response_format has the type json_schema, and no schema; expected one at json_schema.schema",
            "response_format",
        )

    def _schema(self) -> dict[str, Any] | None:
        """Return its schema, wherever that stands."""
        nested = self.json_schema.schema if self.json_schema is not None else None
        if nested is not None and self.schema is not None:
            raise BadRequest("response_format has two schemas; expected one", "response_format")
        schema = self.schema if nested is None else nested
        if schema is not None and self.type not in ("json_schema", "json_object"):
            raise BadRequest(
                f"response_format has a schema, and the type {self.type}; expected json_schema with it",
                "response_format",
            )
        return schema

    def unenforced(self) -> list[str]:
        """Return what its schema says that an answer is not held to."""
        schema = self._schema()
        return [] if schema is None else [f"response_format ({name})" for name in unenforced(schema)]


class StructuredOutputs(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`structured_outputs`: one of the first six. See `StructuredOutputsParams`."""

    json: str | dict[str, Any] | None = None
    regex: str | None = None
    choice: tuple[str, ...] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: str | dict[str, Any] | None = None
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    whitespace_pattern: str | None = None

    def asked(self) -> StructuredOutputsParams:
        """Return the constraint as the engine takes it."""
        return StructuredOutputsParams(**msgspec.structs.asdict(self))

    def unenforced(self) -> list[str]:
        """Return what its schema says that an answer is not held to."""
        schema: Any = self.json
        if isinstance(schema, str):
            try:
                schema = msgspec.json.decode(schema)
            except (msgspec.DecodeError, RecursionError):
                return []  # it is refused where it is compiled
        return [f"structured_outputs.json ({name})" for name in unenforced(schema)]


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


def asked_for(response_format: ResponseFormat | None, structured: StructuredOutputs | None) -> Structure:
    """Return a request's constraint on its answer's text.

    Raises:
        BadRequest: both are given, or one makes no sense.
    """
    if structured is not None and response_format is not None and response_format.type != "text":
        raise BadRequest(
            "structured_outputs and response_format are given; expected one", "structured_outputs"
        )
    if structured is not None:
        return Structure(structured.asked(), "structured_outputs")
    with written_as({"structured_outputs": "response_format"}):
        return Structure(response_format.asked() if response_format is not None else None, "response_format")


class Structure(msgspec.Struct, frozen=True):
    """The constraint on an answer's text, if any, and the field that sets it."""

    asked: StructuredOutputsParams | None = None
    place: str = "structured_outputs"


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


def _readable(parameters: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return the schema by which arguments are read; None where nothing is known of them."""
    return None if parameters is None else arguments_schema(parameters)


def _is_json(text: Structure) -> bool:
    return text.asked is not None and text.asked.kind in ("json", "json_object")


def _json_schema(asked: StructuredOutputsParams) -> Any:
    return msgspec.json.decode(asked.json) if asked.json is not None else ANY_OBJECT


def with_reasoning(asked: StructuredOutputsParams | None, formats: Formats) -> StructuredOutputsParams | None:
    """Return the constraint on the answer after the model's reasoning, if it reasons."""
    if asked is None or formats.reasoning is None:
        return asked
    begin, end, _ = formats.reasoning
    return msgspec.structs.replace(asked, reasoning_begin=begin, reasoning_end=end)


def parser(
    formats: Formats,
    tools: Tools | None,
    new_id: Callable[[int | None], str],
    *,
    tells_reasoning: bool,
    customs: frozenset[str] = frozenset(),
) -> Callable[[], OutputParser] | None:
    """Return the maker of parsers of a choice's text; None takes all of it as content. `customs` are custom
    tools' names.
    """
    form: ToolFormat | None = None
    if tools is not None:
        form = formats.forced if tools.is_forced else formats.tools
    if form is None and formats.reasoning is None:
        return None

    schemas = (
        {}
        if tools is None
        else {one.function.name: _readable(one.function.parameters) for one in tools.tools}
    )

    def make() -> OutputParser:
        calls = form.reader(lambda: new_id(form.id_length), schemas) if form is not None else None
        one = tools is not None and tools.one
        made = ChatParser(
            *(formats.reasoning, calls),
            one_call=one,
            only_calls=tools is not None and tools.is_forced,
            tells_reasoning=tells_reasoning,
        )
        return CustomCalls(made, customs) if customs else made

    return make


def shows_special(formats: Formats, tools: Tools | None) -> bool:
    """Tell whether special tokens must have a text, since some of them mean something to the parser."""
    form = formats.tools if tools is not None else None
    return formats.special or (form is not None and form.special)
