"""Constraints become grammars that allow what requests ask for and nothing else, or are refused with a reason."""

from __future__ import annotations

import json

import pytest

from pageant.actors.grammar.compiling import Compiler
from pageant.actors.grammar.errors import GrammarError
from pageant.protocol.structured_outputs import StructuredOutputsParams as Asked

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0, "maximum": 120}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
GBNF = 'root ::= "(" root ")" | [a-z]'
LARK = 'start: "(" start ")" | /[a-z]/'
TAGS = {
    "structures": [{"begin": "<call>f:", "schema": {"type": "integer"}, "end": "</call>"}],
    "triggers": ["<call>"],
}


def takes(matcher, tokenization, text: str) -> bool:
    """Tell whether a text is allowed, and whole."""
    matcher = matcher.deep_copy()
    ids = tokenization.encode(text, add_special_tokens=False)
    return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()


@pytest.mark.parametrize(
    ("asked", "allowed", "refused"),
    [
        (
            Asked(json=PERSON),
            ['{"name":"é","age":7}', '{ "name": "x",\n  "age": 120}'],
            ['{"name":"x"}', "{}"],
        ),
        (
            Asked(json=PERSON),
            [],
            ['{"name":"x","age":121}', '{"name":"x",  "age":1}', '{"name":"x","age":1,"z":1}'],
        ),
        (
            Asked(json=json.dumps(PERSON), disable_any_whitespace=True),
            ['{"name":"x","age":1}'],
            ['{"name": "x","age":1}'],
        ),
        (Asked(json=PERSON, whitespace_pattern="_*"), ['{"name":_"x",__"age":1}'], ['{"name": "x","age":1}']),
        (Asked(json={"properties": {"a": {"const": 1}}}), ['{"a":1}', '{"a":1,"b":2}', "3"], ['{"a":2}']),
        (
            Asked(json={"properties": {"a": {"const": 1}}}, disable_additional_properties=True),
            ['{"a":1}', "{}"],
            ['{"a":1,"b":2}'],
        ),
        (Asked(json_object=True), ["{}", '{"a": [1, {"b": null}]}'], ["[]", "1"]),
        (Asked(regex=r"a/b\.[0-9]{2}|\s"), ["a/b.12", " "], ["a/bx12", "a/b.1", ""]),
        (Asked(choice=["yes", 'a "b"\n\\', "é"]), ["yes", 'a "b"\n\\', "é"], ["ye", "yesyes"]),
        (Asked(grammar=GBNF), ["a", "((z))"], ["((z)", "1"]),
        (Asked(grammar=LARK), ["a", "((z))"], ["((z)", "1"]),
        (
            Asked(structural_tag=TAGS),
            ["text", "<call>f:12</call>", "a <call>f:1</call> b"],
            ["<call>f:x</call>"],
        ),
        (
            Asked(choice=["yes"], reasoning_end="</think>"),
            ["well</think>\n\nyes", "</think>yes"],
            ["yes", "</think>no"],
        ),
        (Asked(json=PERSON, reasoning_end="END"), ['{"}END{"name":"","age":1}'], ["END{}"]),
        (
            Asked(choice=["yes"], reasoning_begin="<think>", reasoning_end="</think>"),
            ["yes", "<think>well</think>\nyes"],
            ["well</think>yes", "<think>yes"],
        ),
    ],
)
def test_what_is_asked_for_is_allowed_and_nothing_else(compiler, tokenization, asked, allowed, refused):
    matcher = compiler.compile(asked)
    for text in allowed:
        assert takes(matcher, tokenization, text), text
    for text in refused:
        assert not takes(matcher, tokenization, text), text


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        (Asked(json="{"), "no JSON"),
        (Asked(json="[]"), "expected an object"),
        (Asked(json={"type": "foo"}), "foo"),
        (Asked(json="false"), "expected an object"),
        (Asked(json={"type": "string", "enum": [1]}), "Unsatisfiable"),
        (Asked(json={"$ref": "http://example.com/schema"}), "example.com"),
        (Asked(json={"contains": {"const": 1}, "type": "array"}), "contains"),
        (Asked(json={"$ref": "#"}), "no text that ends"),
        (Asked(json={"oneOf": [{"minimum": 1, "type": "integer"}, {"type": "number"}]}), "expected anyOf"),
        (Asked(regex="(a"), "unclosed group"),
        (Asked(regex="(?=a)b"), "look-ahead"),
        (Asked(grammar="start: missing"), "missing"),
        (Asked(grammar="root ::= ("), "GBNF"),
        (Asked(structural_tag={"structures": []}), "no structures"),
        (Asked(structural_tag={"triggers": ["a"]}), "structures"),
        (Asked(structural_tag={**TAGS, "triggers": ["x"]}), "no trigger"),
    ],
)
def test_what_makes_no_sense_is_refused_with_a_reason(compiler, asked, reason):
    with pytest.raises(GrammarError, match=reason) as caught:
        compiler.compile(asked)
    assert 0 < len(str(caught.value)) <= 500


def nested(levels: int) -> str:
    return '{"anyOf":[' * levels + "true" + "]}" * levels


@pytest.mark.parametrize(
    "asked",
    [
        Asked(json=nested(40)),
        Asked(json="[" * 100_000),
        Asked(json='{"a":' * 5000 + "1" + "}" * 5000),
        Asked(regex="(" * 5000 + ")" * 5000),
        Asked(grammar="root ::= " + "(" * 50_000),
        Asked(
            json={"allOf": [{"anyOf": [{"properties": {f"{c}{i}": {}}} for c in "abc"]} for i in range(40)]}
        ),
    ],
)
def test_what_costs_too_much_is_refused(compiler, asked):
    with pytest.raises(GrammarError):
        compiler.compile(asked)


@pytest.mark.parametrize("regex", ["(a{1000}){1000}", "(.*a){200}", "((((a*)*)*)*)*b", "(a|aa)+$"])
def test_an_expression_that_would_explode_is_followed_or_refused_within_its_fuel(
    compiler, tokenization, regex
):
    try:
        matcher = compiler.compile(Asked(regex=regex))
    except GrammarError:
        return
    a = tokenization.encode("a", add_special_tokens=False)
    for _ in range(40):
        matcher.consume_tokens(a)
        matcher.compute_bitmask()
        if matcher.is_error():
            return


def test_a_model_without_an_end_token_cannot_be_guided(tokenization, vocab_size):
    with pytest.raises(GrammarError, match="end token"):
        Compiler(tokenization, vocab_size, ())


@pytest.mark.parametrize(
    "schema",
    [
        '{"type": "integer", "minimum": 1e999}',
        '{"type": "integer", "exclusiveMaximum": -1e999}',
        '{"type": "number", "minimum": NaN}',
        '{"enum": [%s]}' % ("1" * 400),
        '{"enum": [-%s]}' % ("1" * 4000),
        '{"const": Infinity}',
    ],
)
def test_numbers_that_no_double_holds_are_refused(compiler, schema):
    with pytest.raises(GrammarError):
        compiler.compile(Asked(json=schema))
