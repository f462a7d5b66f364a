"""Bounds on sources, whatever path the recursion takes."""

from __future__ import annotations

import pytest

from pageant.actors.grammar.bounds import CHAIN_MAX, DEPTH_MAX, check_depth, check_references, check_rules
from pageant.actors.grammar.errors import GrammarError


def chain(count, key="$ref", pointer="#/$defs/d{}", anchored=False):
    def link(number):
        own = {"$anchor": f"d{number}"} if anchored else {}
        return own | ({key: pointer.format(number + 1)} if number < count else {"type": "integer"})

    return {**link(0), "$defs": {f"d{number}": link(number) for number in range(1, count + 1)}}


@pytest.mark.parametrize(
    "schema",
    [
        chain(CHAIN_MAX),
        chain(CHAIN_MAX, "$dynamicRef"),
        chain(CHAIN_MAX, pointer="#d{}", anchored=True),
        chain(CHAIN_MAX, pointer="#/%24defs/d{}"),
        {"properties": {"x": chain(CHAIN_MAX)}, "$defs": chain(CHAIN_MAX)["$defs"]},
    ],
    ids=["references", "dynamic", "anchors", "escaped", "within a property"],
)
def test_references_that_lead_too_deep_are_refused(schema):
    with pytest.raises(GrammarError, match=f"deeper than {CHAIN_MAX} levels"):
        check_references(schema)


@pytest.mark.parametrize(
    "schema",
    [
        chain(CHAIN_MAX // 4),
        {"$defs": {"a": {"properties": {"next": {"$ref": "#/$defs/a"}}}}, "$ref": "#/$defs/a"},
        {"items": {"$ref": "#"}},
        {"$ref": "#/$defs/nowhere/3/x"},
        {"$ref": "https://example.org/schema"},
        {"anyOf": [{"const": number} for number in range(5000)]},
    ],
    ids=["few", "a cycle", "itself", "nowhere", "elsewhere", "many side by side"],
)
def test_other_references_are_not(schema):
    check_references(schema)


def rules(count, sign=":", first="start"):
    lines = [f"{first} {sign} r0", *(f"r{n} {sign} r{n + 1}" for n in range(count)), f'r{count} {sign} "a"']
    return "\n".join(lines)


@pytest.mark.parametrize("grammar", [rules(6000), rules(6000, "::=", "root"), rules(6000).replace("r", "R")])
def test_rules_that_lead_too_deep_are_refused(grammar):
    with pytest.raises(GrammarError, match=f"more than {CHAIN_MAX} levels"):
        check_rules(grammar)


def test_many_rules_side_by_side_are_not():
    names = [f"r{number}" for number in range(3000)]
    quoted = "\n".join(f'{name}: "r{number + 1}" | /r{number + 1}/' for number, name in enumerate(names))
    check_rules(f"start: {' | '.join(names)}\n{quoted}\n")


def test_values_that_are_nested_too_deep_are_refused():
    value = 1
    for _ in range(DEPTH_MAX - 1):
        value = [value]
    check_depth(value)
    with pytest.raises(GrammarError, match=f"deeper than {DEPTH_MAX} levels"):
        check_depth({"a": [value]})
