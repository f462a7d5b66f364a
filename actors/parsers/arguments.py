"""Arguments of calls in formats that do not write them as a JSON object, as trees of structural tags.

Each of a schema's properties has a place of its own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from keyword import iskeyword, kwlist
from typing import Any

from pageant.actors.parsers.base import encodable
from pageant.actors.parsers.lark_strings import escaped_grammar

Tree = dict[str, Any]


@dataclass(frozen=True)
class HeldText:
    """The only argument of a call, a text that follows a grammar.

    Attributes:
        name: of the argument.
        grammar: in Lark's form; `escaped_grammar` takes it.
    """

    name: str
    grammar: str


def const(value: str) -> Tree:
    """Return the tree of a constant text."""
    return {"type": "const_string", "value": value}


def sequence(*elements: Tree) -> Tree:
    """Return an expression for these, one after another."""
    return {"type": "sequence", "elements": elements}


def _either(*elements: Tree) -> Tree:
    return {"type": "or", "elements": elements}


def _regex(pattern: str) -> Tree:
    return {"type": "regex", "pattern": pattern}


def _grammar(grammar: str) -> Tree:
    return {"type": "grammar", "grammar": grammar}


_REFERENCES_MAX = 16  # one to another
_PYTHON_NAME = f"start: NAME\nNAME: /[A-Za-z_][A-Za-z0-9_]{{0,63}}/ & ~/{'|'.join(kwlist)}/"
"""A grammar of the names that an argument may have."""


def _with_definitions(schema: dict[str, Any], root: dict[str, Any]) -> dict[str, Any]:
    return {**{key: root[key] for key in ("$defs", "definitions") if key in root}, **schema}


def _properties(
    schema: dict[str, Any], can_be_named: Callable[[str], object]
) -> tuple[dict[str, Any], list[str]]:
    """A schema's properties, those first that are required; and which those are. They know its definitions."""
    required = schema.get("required", ())
    found = {
        name: _with_definitions(value, schema) if isinstance(value, dict) else {}
        for name, value in schema.get("properties", {}).items()
        if can_be_named(name)
    }
    first = [name for name in found if name in required]
    return {name: found[name] for name in [*first, *(name for name in found if name not in required)]}, first


def resolved(schema: Any, root: Any) -> Any:
    """A schema, or the definition of its root's that it refers to."""
    for _ in range(_REFERENCES_MAX):
        reference = schema.get("$ref") if isinstance(schema, dict) else None
        if not isinstance(reference, str) or not reference.startswith("#/"):
            break
        schema = root
        for part in reference.removeprefix("#/").split("/"):
            schema = schema.get(part) if isinstance(schema, dict) else None
    return schema


def _is_free(schema: dict[str, Any]) -> bool:
    """Tell whether a schema leaves the arguments free."""
    return "properties" not in schema and schema.get("additionalProperties", True) is not False


def as_json(schema: dict[str, Any]) -> Tree:
    """A JSON value."""
    return {"type": "json_schema", "json_schema": schema}


_BLANK = r"( |\n {0,32})?"


def text_as_json(text: HeldText) -> Tree:
    """An object with one string."""
    before, after = rf'\{{{_BLANK}"{text.name}"{_BLANK}:{_BLANK}"', rf'"{_BLANK}\}}'
    return sequence(_regex(before), _grammar(escaped_grammar(text.grammar)), _regex(after))


def text_as_python(text: HeldText) -> Tree:
    """`input="x"`."""
    return sequence(const(f'{text.name}="'), _grammar(escaped_grammar(text.grammar)), const('"'))


def as_python(schema: dict[str, Any]) -> Tree:
    """`a=1, b="x"`: values are JSON, which are Python's literals but for three words; and those are read too."""
    schema = _with_definitions(resolved(schema, schema), schema)
    if _is_free(schema):
        any_argument = sequence(_grammar(_PYTHON_NAME), const("="), as_json({}))
        return {
            "type": "tags_with_separator",
            "tags": [{"type": "tag", "begin": "", "content": any_argument, "end": ""}],
            "separator": ", ",
            "at_least_one": False,
        }
    properties, required = _properties(schema, lambda name: name.isidentifier() and not iskeyword(name))
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
    """Tell whether a value of this schema is a string, which is then written without quotes."""
    return isinstance(schema, dict) and schema.get("type") == "string"


@dataclass(frozen=True)
class XmlArguments:
    """Arguments as each stands between marks: strings as they are, all else as JSON.

    Attributes:
        begin, end: around a value; `KEY` is replaced by its name.
        after: behind that.
    """

    begin: str
    end: str
    after: str = "\n"

    def of_schema(self, schema: dict[str, Any]) -> Tree:
        """Return the tree of arguments that follow a schema."""
        schema = _with_definitions(resolved(schema, schema), schema)
        if _is_free(schema):
            return {"type": "any_text"}
        properties, required = _properties(schema, _XML_NAME.fullmatch)
        parts = []
        for name, value in properties.items():
            tree = self._one(name, _xml_text(value) if is_text(value) else as_json(value))
            parts.append(tree if name in required else _either(tree, const("")))
        return sequence(*parts)

    def of_text(self, text: HeldText) -> Tree:
        """Return the tree of one argument, the text as it is."""
        return self._one(text.name, _grammar(text.grammar))

    def _one(self, name: str, content: Tree) -> Tree:
        begin = self.begin.replace("KEY", name)
        tag = {"type": "tag", "begin": begin, "content": content, "end": self.end}
        return sequence(tag, const(self.after)) if self.after else tag


QWEN = XmlArguments(f"{PARAMETER}KEY>\n", f"\n{PARAMETER_END}")
GLM_LINES = XmlArguments("<arg_key>KEY</arg_key>\n<arg_value>", "</arg_value>")
GLM = XmlArguments("<arg_key>KEY</arg_key><arg_value>", "</arg_value>", after="")
MINIMAX = XmlArguments('<parameter name="KEY">', PARAMETER_END)


def _xml_text(schema: dict[str, Any]) -> Tree:
    """A string, by what its schema says of it that can be said of one without quotes: not its `format`. One that has a
    pattern or bounds is of a single line, so that it is clear where it ends."""
    if "const" in schema or "enum" in schema:
        return _either(*(const(str(one)) for one in schema.get("enum", [schema.get("const")])))
    if "pattern" in schema:
        whole = re.sub(r"^(?!\^)", ".*", re.sub(r"(?<!\$)$", ".*", schema["pattern"]))
        return _regex(whole.removeprefix("^").removesuffix("$"))
    if "minLength" in schema or "maxLength" in schema:
        bounds = f"{schema.get('minLength', 0)},{schema.get('maxLength', '')}"
        return _regex(f".{{{bounds}}}")
    return {"type": "any_text"}


def _types(schema: Any, root: Any, depth: int = 0) -> set[str]:
    """Return the JSON types that a schema allows, as far as it tells; anything else has "any" among them."""
    schema = resolved(schema, root)
    if not isinstance(schema, dict) or depth > _REFERENCES_MAX:
        return {"any"}
    kind = schema.get("type")
    if isinstance(kind, str):
        return {kind}
    if isinstance(kind, list):
        return {str(one) for one in kind}
    options = schema.get("anyOf") or schema.get("oneOf")
    if not isinstance(options, list):
        return {"any"}
    return set().union(*(_types(one, root, depth + 1) for one in options))


def xml_value(written: str, schema: Any, root: Any = None) -> str:
    """A value that was written so, as JSON.

    Args:
        root: the schema of which this is a part, for what it refers to.
    """
    if is_text(schema):
        return json.dumps(written, ensure_ascii=False)
    if _types(schema, root) == {"string", "null"}:
        return _text_or_null(written)
    text = {"True": "true", "False": "false", "None": "null"}.get(written.strip(), written)
    try:
        return encodable(json.dumps(json.loads(text), ensure_ascii=False, allow_nan=False))
    except (ValueError, RecursionError):
        return json.dumps(written, ensure_ascii=False)


def _text_or_null(written: str) -> str:
    """A string, in quotes or as it is; a word without them is none of another type."""
    if written.strip() in ("null", "None"):
        return "null"
    try:
        value = json.loads(written)
    except (ValueError, RecursionError):
        value = written
    return json.dumps(encodable(value) if isinstance(value, str) else written, ensure_ascii=False)
