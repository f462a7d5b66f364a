"""Bounds on what a grammar's source may ask of a recursive compiler, checked before it is compiled.

The compiler follows nested values, references and rules by calling itself, and what goes too deep overflows its stack.
All walks here keep their own stacks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import unquote

from pageant.actors.grammar.errors import GrammarError
from pageant.protocol.json_schemas import is_exact, schemas_within

DEPTH_MAX = 64
"""Levels of values within values."""
CHAIN_MAX = 512
"""Levels of values, references and rules entered one out of another; the compiler takes some 1,000 on 4 MiB."""
_QUOTED = re.compile(r'"(?:[^"\\\n]|\\.)*"|/(?:[^/\\\n]|\\.)+/')
_RULE = re.compile(r"^[ \t]*[?!]*([A-Za-z_][\w-]*)[ \t]*(?:\[[^\]\n]*\])?(?:\.\d+)?[ \t]*(?:::=|:)", re.M)
_NAME = re.compile(r"[A-Za-z_][\w-]*")


def check_depth(value: Any) -> None:
    """Refuse a JSON value that is nested deeper than parsers in between can follow.

    Raises:
        GrammarError: more than `DEPTH_MAX` levels.
    """
    level = [value]
    for _ in range(DEPTH_MAX):
        nested = [item for item in level if isinstance(item, dict | list)]
        level = [part for item in nested for part in (item.values() if isinstance(item, dict) else item)]
        if not level:
            return
    raise GrammarError(f"the schema is nested deeper than {DEPTH_MAX} levels")


def check_references(schema: Any) -> None:
    """Refuse a schema whose references lead one out of another for too long. Cycles are no fault.

    Raises:
        GrammarError: more than `CHAIN_MAX` levels of values and references.
    """
    anchors = _anchors(schema)

    def entered(value: Any) -> Iterator[Any]:
        if isinstance(value, dict):
            for key in ("$ref", "$dynamicRef", "$recursiveRef"):
                if isinstance(target := value.get(key), str):
                    yield _target(schema, anchors, target)
            yield from value.values()
        elif isinstance(value, list):
            yield from value

    if _is_too_deep(schema, entered, id, set()):
        raise GrammarError(f"references within the schema lead deeper than {CHAIN_MAX} levels")


def check_integers(schema: Any) -> None:
    """Refuse integers among the values of a schema that the compiler would round, as it does beyond 2^53.

    Raises:
        GrammarError: a value of a `const` or an `enum` is one of them.
    """
    for one in schemas_within(schema):
        left = [one[key] for key in ("const", "enum") if key in one]
        while left:
            value = left.pop()
            if isinstance(value, dict | list):
                left += value.values() if isinstance(value, dict) else value
            elif isinstance(value, int) and not is_exact(value):
                raise GrammarError(
                    f"the integer {value} cannot be had exactly; expected at most 2^53, or a string"
                )


def check_rules(grammar: str) -> None:
    """Refuse a grammar, in Lark's form or in GBNF, whose rules lead one out of another for too long.

    Raises:
        GrammarError: more than `CHAIN_MAX` rules.
    """
    plain = _QUOTED.sub('""', grammar)
    heads = list(_RULE.finditer(plain))
    if len(heads) <= CHAIN_MAX:
        return
    ends = [head.start() for head in heads[1:]] + [len(plain)]
    used: dict[str, list[str]] = {}
    for head, end in zip(heads, ends, strict=True):
        used.setdefault(head[1], []).extend(_NAME.findall(plain[head.end() : end]))
    seen: set[Any] = set()
    for rule in ("start", "root", *used):
        if _is_too_deep(rule, lambda name: iter(used.get(name, ())), str, seen):
            raise GrammarError(
                f"rules of the grammar lead one out of another for more than {CHAIN_MAX} levels"
            )


def _is_too_deep(
    start: Any, entered: Callable[[Any], Iterator[Any]], name: Callable[[Any], Any], seen: set[Any]
) -> bool:
    """Return whether a walk that enters each value once, as the compiler does, gets deeper than `CHAIN_MAX`.

    Args:
        entered: the values that the compiler enters from one.
        name: tells values apart.
        seen: the names of those that were entered; added to.
    """
    stack: list[Iterator[Any]] = [iter((start,))]
    while stack:
        if len(stack) > CHAIN_MAX:
            return True
        for value in stack[-1]:
            if name(value) not in seen:
                seen.add(name(value))
                stack.append(entered(value))
                break
        else:
            stack.pop()
    return False


def _anchors(schema: Any) -> dict[str, Any]:
    """Return the values of a schema that have a name of their own, by it."""
    found: dict[str, Any] = {}
    left = [schema]
    while left:
        value = left.pop()
        if isinstance(value, dict):
            for key in ("$anchor", "$dynamicAnchor"):
                if isinstance(name := value.get(key), str):
                    found[name] = value
            left += value.values()
        elif isinstance(value, list):
            left += value
    return found


def _target(schema: Any, anchors: Mapping[str, Any], reference: str) -> Any:
    """Return the value that a reference within the schema leads to; None where it leads elsewhere."""
    _, mark, path = reference.partition("#")
    if not mark:
        return None
    if not path.startswith("/"):
        return anchors.get(path) if path else schema
    value = schema
    for step in path[1:].split("/"):
        step = unquote(step).replace("~1", "/").replace("~0", "~")
        if isinstance(value, dict):
            value = value.get(step)
        elif isinstance(value, list) and step.isdecimal() and int(step) < len(value):
            value = value[int(step)]
        else:
            return None
    return value
