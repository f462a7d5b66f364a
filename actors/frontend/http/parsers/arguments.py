"""What the arguments of a call look like in formats that do not write them as a JSON object, as trees of structural
tags: each of a schema's properties has a place of its own."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from pageant.actors.frontend.http.parsers.base import encodable

Tree = dict[str, Any]


def const(value: str) -> Tree:
    """This text."""
    return {"type": "const_string", "value": value}


def sequence(*elements: Tree) -> Tree:
    """One after another."""
    return {"type": "sequence", "elements": elements}


def _either(*elements: Tree) -> Tree:
    return {"type": "or", "elements": elements}


def _properties(
    schema: dict[str, Any], can_be_named: Callable[[str], object]
) -> tuple[dict[str, Any], list[str]]:
    """A schema's properties, those first that are required; and which those are. They know its definitions."""
    defined = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
    required = schema.get("required", ())
    found = {
        name: {**defined, **value} if isinstance(value, dict) else {}
        for name, value in schema.get("properties", {}).items()
        if can_be_named(name)
    }
    first = [name for name in found if name in required]
    return {name: found[name] for name in [*first, *(name for name in found if name not in required)]}, first


def as_json(schema: dict[str, Any]) -> Tree:
    """A JSON value."""
    return {"type": "json_schema", "json_schema": schema}


def as_python(schema: dict[str, Any]) -> Tree:
    """`a=1, b="x"`: values are JSON, which are Python's literals but for three words; and those are read too."""
    properties, required = _properties(schema, str.isidentifier)
    ordered = list(properties)
    if not ordered:
        return const("")

    def argument(name: str, before: str = "") -> Tree:
        return sequence(const(f"{before}{name}="), as_json(properties[name]))

    firsts = ordered[:1] if required else ordered
    options = []
    for index, first in enumerate(firsts):
        rest = [(name, argument(name, ", ")) for name in ordered[index + 1 :]]
        wanted = [tree if name in required else _either(tree, const("")) for name, tree in rest]
        options.append(sequence(argument(first), *wanted))
    return _either(*options) if required else _either(*options, const(""))


PARAMETER, PARAMETER_END = "<parameter=", "</parameter>"
_XML_NAME = re.compile(r"[^<>\s]+")


def is_text(schema: Any) -> bool:
    """Whether a value of this schema is a string, which is then written without quotes."""
    return isinstance(schema, dict) and schema.get("type") == "string"


def as_xml(schema: dict[str, Any]) -> Tree:
    """`<parameter=a>`, a value on lines of its own, `</parameter>`: strings as they are, all else as JSON."""
    properties, required = _properties(schema, _XML_NAME.fullmatch)
    parts = []
    for name, value in properties.items():
        tree = _xml_parameter(f"{PARAMETER}{name}>\n", value, f"\n{PARAMETER_END}")
        parts.append(tree if name in required else _either(tree, const("")))
    return sequence(*parts)


def _xml_parameter(begin: str, schema: dict[str, Any], end: str) -> Tree:
    content: Tree = as_json(schema)
    if is_text(schema):
        content = _xml_text(schema)
    return sequence({"type": "tag", "begin": begin, "content": content, "end": end}, const("\n"))


def _xml_text(schema: dict[str, Any]) -> Tree:
    """A string, by what its schema says of it that can be said of one without quotes: not its `format`. One that has a
    pattern or bounds is of a single line, so that it is clear where it ends."""
    if "const" in schema or "enum" in schema:
        return _either(*(const(str(one)) for one in schema.get("enum", [schema.get("const")])))
    if "pattern" in schema:
        whole = re.sub(r"^(?!\^)", ".*", re.sub(r"(?<!\$)$", ".*", schema["pattern"]))
        return {"type": "regex", "pattern": whole.removeprefix("^").removesuffix("$")}
    if "minLength" in schema or "maxLength" in schema:
        bounds = f"{schema.get('minLength', 0)},{schema.get('maxLength', '')}"
        return {"type": "regex", "pattern": f".{{{bounds}}}"}
    return {"type": "any_text"}


def xml_value(written: str, schema: Any) -> str:
    """A value that was written so, as JSON."""
    if is_text(schema):
        return json.dumps(written, ensure_ascii=False)
    text = {"True": "true", "False": "false", "None": "null"}.get(written.strip(), written)
    try:
        return encodable(json.dumps(json.loads(text), ensure_ascii=False, allow_nan=False))
    except (ValueError, RecursionError):
        return json.dumps(written, ensure_ascii=False)
