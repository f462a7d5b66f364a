"""Hostile sources of structured output: what overflows, explodes, never ends, or makes no sense."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

Schema = dict[str, Any]

CHAIN = 3000
LOWEST = -(2**63)


def _chain(link: Callable[[int], Schema], last: Schema, count: int = CHAIN) -> Schema:
    return {**link(0), "$defs": {**{f"d{n}": link(n) for n in range(1, count)}, f"d{count}": last}}


def _nested(wrap: Callable[[Any], Any], depth: int, value: Any) -> Any:
    for _ in range(depth):
        value = wrap(value)
    return value


def _object(properties: Schema, **more: Any) -> Schema:
    return {"type": "object", "properties": properties, "required": [*properties], **more}


_INTEGER: Schema = {"type": "integer"}
_SCHEMAS: dict[str, Schema] = {
    "a const of the lowest int64": {"const": LOWEST},
    "it within an enum within an object": _object({"a": {"enum": [1, LOWEST]}}),
    "a range of the lowest int64": {"type": "integer", "minimum": LOWEST, "maximum": LOWEST + 1},
    "a range beyond every number": {"type": "number", "minimum": -1e308, "exclusiveMaximum": 1e308},
    "a multiple of almost nothing": {"type": "number", "multipleOf": 1e-300},
    "a chain of references": _chain(lambda n: {"$ref": f"#/$defs/d{n + 1}"}, _INTEGER),
    "a chain of dynamic references": _chain(lambda n: {"$dynamicRef": f"#/$defs/d{n + 1}"}, _INTEGER),
    "a chain of anchors": _chain(
        lambda n: {"$anchor": f"a{n}", "$ref": f"#a{n + 1}"}, {"$anchor": f"a{CHAIN}"}
    ),
    "a chain through properties": _chain(lambda n: _object({"x": {"$ref": f"#/$defs/d{n + 1}"}}), _INTEGER),
    "a chain through items": _chain(lambda n: {"items": {"$ref": f"#/$defs/d{n + 1}"}}, _INTEGER),
    "a chain through allOf": _chain(lambda n: {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}]}, _INTEGER),
    "a tree of references that doubles": _chain(
        lambda n: {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}, {"$ref": f"#/$defs/d{n + 1}"}]}, _INTEGER, 40
    ),
    "a product of choices": {
        "allOf": [{"anyOf": [_object({f"a{n}": {}}), _object({f"b{n}": {}})]} for n in range(24)]
    },
    "a reference to itself": {"$ref": "#"},
    "two that lead to each other": {
        "$ref": "#/$defs/a",
        "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}},
    },
    "a value that never ends": {
        "$ref": "#/$defs/a",
        "$defs": {"a": _object({"next": {"$ref": "#/$defs/a"}})},
    },
    "values within values": _nested(lambda inner: _object({"a": inner}), 60, _INTEGER),
    "a deep const": {"const": _nested(lambda inner: [inner], 60, 1)},
    "what is not what is not": _nested(lambda inner: {"not": inner}, 50, _INTEGER),
    "three thousand properties": _object({f"property_{n}": _INTEGER for n in range(3000)}),
    "optional properties in any order": {
        "type": "object",
        "properties": {f"p{n}": {"type": "string"} for n in range(800)},
        "additionalProperties": False,
    },
    "an enum of ten thousand": {"enum": [f"value {n}" for n in range(10_000)]},
    "a million items": {"type": "array", "items": _INTEGER, "minItems": 10**6, "maxItems": 10**6},
    "ten million characters": {"type": "string", "minLength": 10**7, "maxLength": 10**7},
    "a pattern of patterns": {"type": "string", "pattern": "^((a{1,1000}){1,1000}){1,1000}$"},
    "a pattern that backtracks": {"type": "string", "pattern": "^(a+)+b(c|cc)*(d|dd|ddd)+$"},
    "patterns of names": {
        "type": "object",
        "patternProperties": {f"^{'(x|y)' * n}z$": _INTEGER for n in range(1, 40)},
    },
    "patterns that meet": {
        "allOf": [{"type": "string", "pattern": f"^.*{'ab' * n}.*$"} for n in range(1, 30)]
    },
    "a pattern and a length": {
        "type": "string",
        "pattern": "^(ab?c*)+$",
        "minLength": 5000,
        "maxLength": 5001,
    },
}
_EXPRESSIONS: dict[str, str] = {
    "repeats of repeats": "((a{1,1000}){1,1000}){1,1000}",
    "any of every letter, often": r"(\p{L}|\p{N}){5000}",
    "an end that is far away": "(a|b)*a(a|b){2000}",
    "ten thousand ways": "|".join(f"way {n}" for n in range(10_000)),
    "brackets within brackets": "(" * 3000 + "a" + ")" * 3000,
    "stars of stars": "(" * 90 + "a" + ")*" * 90,
    "a look behind": "(?<=a)b",
    "a class that is not closed": "[" * 10_000,
}
_GRAMMARS: dict[str, str] = {
    "a chain of rules": "\n".join(["start: r0", *(f"r{n}: r{n + 1}" for n in range(6000)), 'r6000: "a"']),
    "a chain of terminals": "\n".join(["start: R0", *(f"R{n}: R{n + 1}" for n in range(6000)), 'R6000: "a"']),
    "a chain in GBNF": "\n".join(
        ["root ::= r0", *(f"r{n} ::= r{n + 1}" for n in range(6000)), 'r6000 ::= "a"']
    ),
    "a rule that begins with itself": 'start: a\na: a "x" | a a | ""',
    "nothing, as often as you like": 'start: (a*)*\na: ("")*',
    "a rule that never ends": "start: start start",
    "a grammar of every ambiguity": "start: e\ne: " + " | ".join(["e e"] * 200) + ' | "x"',
    "brackets in a rule": "start: " + "(" * 4000 + '"a"' + ")" * 4000,
}
_TAG: Schema = {"type": "const_string", "value": "x"}
_TAGS: dict[str, Any] = {
    "tags within tags": {
        "format": _nested(lambda inner: {"type": "sequence", "elements": [inner]}, 28, _TAG),
    },
    "four thousand triggers": {
        "structures": [{"begin": f"<t{n}>", "schema": {}, "end": "</t>"} for n in range(2000)],
        "triggers": [f"<t{n}" for n in range(2000)],
    },
    "a schema within a tag": {
        "format": {
            "type": "json_schema",
            "json_schema": _chain(lambda n: {"$ref": f"#/$defs/d{n + 1}"}, _INTEGER),
        },
    },
    "the lowest int64 within a tag": {"format": {"type": "json_schema", "json_schema": {"const": LOWEST}}},
}


def hostile_sources() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield names and fields of `structured_outputs`, round after round, no two alike."""
    number = 0
    while True:
        for name, schema in _SCHEMAS.items():
            yield name, {"json": json.dumps(schema | {"$comment": f"{number}"})}
        for name, expression in _EXPRESSIONS.items():
            yield name, {"regex": f"{number} {expression}"}
        for name, grammar in _GRAMMARS.items():
            yield name, {"grammar": f"// {number}\n{grammar}"}
        for name, tags in _TAGS.items():
            yield name, {"structural_tag": json.dumps(tags | {"comment": number})}
        number += 1


NUM_SOURCES = len(_SCHEMAS) + len(_EXPRESSIONS) + len(_GRAMMARS) + len(_TAGS)
