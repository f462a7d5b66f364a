"""JSON schemas in the form that a grammar compiler takes: without annotations, and with bounds that it can
express.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

FORMATS = frozenset(
    {
        *("date-time", "date", "time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"),
        "unknown",
    }
)
"""String formats that are enforced. Any other is an annotation, which is JSON Schema's default."""

INTEGER_MIN, INTEGER_MAX = -(2**63) + 1024, 2**63 - 1
"""Bounds of integers that can be expressed; those beyond are narrowed to these."""
NUMBER_MAX = 10**18
"""The largest magnitude of a bound of other numbers that can be expressed; a larger one is narrowed to this."""
_EXACT_MAX = 2**53
_DOUBLE_MAX = 10**300  # integers below it can be made doubles

_OF_NAMES = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_OF_VALUES = ("const", "enum", "default", "examples", "example")


def schemas_within(schema: Any) -> Iterator[dict[str, Any]]:
    """Yield a schema and every schema within it. Values, such as those of an `enum`, are none."""
    left = [schema]
    while left:
        value = left.pop()
        if isinstance(value, list):
            left += value
        elif isinstance(value, dict):
            yield value
            for key, inner in value.items():
                if key in _OF_NAMES and isinstance(inner, dict):
                    left += inner.values()
                elif key not in _OF_VALUES:
                    left.append(inner)


def unenforced(schema: Any) -> list[str]:
    """Return the constraints of a schema that answers are not held to, such as `format: password`, each once."""
    return list(dict.fromkeys(name for one in schemas_within(schema) for name in _unenforced(one)))


def _unenforced(schema: dict[str, Any]) -> Iterator[str]:
    form = schema.get("format")
    if isinstance(form, str) and form not in FORMATS and _may_be_string(schema):
        yield f"format: {form}"
    if schema.get("uniqueItems") is True:
        yield "uniqueItems"


def _may_be_string(schema: dict[str, Any]) -> bool:
    kind = schema.get("type", "string")
    return kind == "string" or (isinstance(kind, list) and "string" in kind)


def prepare(schema: Any) -> None:
    """Remove annotations from a schema, and narrow bounds that cannot be expressed. Mutates `schema`.

    A value that is valid by the result is valid by the original, except for constraints that `unenforced`
    names.
    """
    for one in list(schemas_within(schema)):
        if isinstance(one.get("format"), str) and one["format"] not in FORMATS:
            del one["format"]
        if isinstance(one.get("uniqueItems"), bool):
            del one["uniqueItems"]
        if _are_values(one.get("oneOf")) and "anyOf" not in one:
            one["anyOf"] = one.pop("oneOf")
        _narrow(one)


def _are_values(options: Any) -> bool:
    """Tell whether the options of a `oneOf` are lists of values without one in two of them: any of them is one."""
    if not isinstance(options, list):
        return False
    values: list[Any] = []
    for option in options:
        if not isinstance(option, dict):
            return False
        found = option.get("enum", [option["const"]] if "const" in option else None)
        if not isinstance(found, list):
            return False
        values += found
    return len({json.dumps(value, sort_keys=True) for value in values}) == len(values)


def is_exact(value: int) -> bool:
    """Tell whether an integer survives a compiler that holds numbers as doubles and writes them briefly."""
    if abs(value) <= _EXACT_MAX:
        return True
    return abs(value) < _DOUBLE_MAX and int(Decimal(repr(float(value)))) == value


def _narrow(schema: dict[str, Any]) -> None:
    """Narrow the bounds of a number to what can be expressed, unless nothing would be left between them."""
    if schema.get("type") == "integer":
        _narrow_integer(schema)
        return
    lower = {
        key: value for key in ("minimum", "exclusiveMinimum") if (value := _bound(schema, key)) is not None
    }
    upper = {
        key: value for key in ("maximum", "exclusiveMaximum") if (value := _bound(schema, key)) is not None
    }
    if all(value > -NUMBER_MAX for value in upper.values()):
        schema |= {key: -NUMBER_MAX for key, value in lower.items() if value < -NUMBER_MAX}
    if all(value < NUMBER_MAX for value in lower.values()):
        schema |= {key: NUMBER_MAX for key, value in upper.items() if value > NUMBER_MAX}


def _narrow_integer(schema: dict[str, Any]) -> None:
    """Write bounds beyond 2^53, which doubles would round, as the nearest inner ones that they hold."""
    lower = [_bound(schema, "minimum"), _next(_bound(schema, "exclusiveMinimum"), 1)]
    upper = [_bound(schema, "maximum"), _next(_bound(schema, "exclusiveMaximum"), -1)]
    least = max((math.ceil(value) for value in lower if value is not None), default=None)
    most = min((math.floor(value) for value in upper if value is not None), default=None)
    if all(value is None or abs(value) <= _EXACT_MAX for value in (least, most)):
        return
    if least is not None:
        least = max(_held(least, up=True), INTEGER_MIN)
    if most is not None:
        most = INTEGER_MAX if most >= INTEGER_MAX else _held(most, up=False)
    if least is not None and most is not None and least > most:
        return  # nothing is left: the compiler says that of the original
    for key in ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"):
        if _bound(schema, key) is not None:
            del schema[key]
    bounds = {"minimum": least, "maximum": most}
    schema |= {key: value for key, value in bounds.items() if value is not None}


def _next(value: float | None, step: int) -> float | None:
    """Return the next integer from an exclusive bound."""
    if value is None:
        return None
    return math.floor(value) + 1 if step > 0 else math.ceil(value) - 1


def _held(value: int, *, up: bool) -> int:
    """Return the nearest integer that a double holds, upwards or downwards."""
    if abs(value) >= _DOUBLE_MAX:
        return value
    found = float(value)
    if (int(found) < value) if up else (int(found) > value):
        found = math.nextafter(found, math.inf if up else -math.inf)
    return int(found)


def _bound(schema: dict[str, Any], key: str) -> int | float | None:
    value = schema.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return None if isinstance(value, float) and not math.isfinite(value) else value
