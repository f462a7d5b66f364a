"""Constraints on an answer's text, from `response_format` and `structured_outputs`."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from pageant.actors.http.naming import written_as
from pageant.actors.parsers.formats import Formats
from pageant.protocol.errors import BadRequest
from pageant.protocol.json_schemas import unenforced
from pageant.protocol.structured_outputs import KINDS, StructuredOutputsParams


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


def in_answer(structure: Structure, formats: Formats) -> Structure:
    """Return the constraint on all that follows a model's thoughts, where its format has marks before an answer.

    structure: the constraint on the answer's text.
    """
    asked, form = structure.asked, formats.tools
    if asked is None or form is None or not form.answer_begin:
        return structure
    tree = {"format": form.answer(_tree(asked))}
    none = dict.fromkeys(KINDS)
    written = msgspec.json.encode(tree).decode()
    return Structure(msgspec.structs.replace(asked, **none | {"structural_tag": written}), structure.place)


def _tree(asked: StructuredOutputsParams) -> dict[str, Any]:
    """Return a constraint as a tree of structural tags.

    Raises:
        BadRequest: it is a text that should be JSON, and is not.
    """
    match asked.kind:
        case "regex":
            return {"type": "regex", "pattern": asked.regex}
        case "grammar":
            return {"type": "grammar", "grammar": asked.grammar}
        case "choice":
            options = [{"type": "const_string", "value": choice} for choice in asked.choice or ()]
            return {"type": "or", "elements": options}
        case "json_object":
            return {"type": "json_schema", "json_schema": {"type": "object"}}
        case "json":
            return {"type": "json_schema", "json_schema": _decoded("json", asked.json)}
    tags = _decoded("structural_tag", asked.structural_tag)
    if not isinstance(tags, dict) or "format" not in tags:
        raise BadRequest(
            "structural_tag has no format; expected a tree, since this model's answers are in a channel",
            "structured_outputs",
        )
    found: dict[str, Any] = tags["format"]
    return found


def _decoded(name: str, text: str | None) -> Any:
    try:
        return msgspec.json.decode(text or "")
    except (msgspec.DecodeError, RecursionError):
        raise BadRequest(f"{name} is not JSON", "structured_outputs") from None


def with_reasoning(asked: StructuredOutputsParams | None, formats: Formats) -> StructuredOutputsParams | None:
    """Return the constraint on the answer after the model's reasoning, if it reasons."""
    if asked is None or formats.reasoning is None:
        return asked
    begin, end, _ = formats.reasoning
    return msgspec.structs.replace(asked, reasoning_begin=begin, reasoning_end=end)
