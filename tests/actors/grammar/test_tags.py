"""Structural tags become grammars of their language; among them are those that make models call tools."""

from __future__ import annotations

import itertools
import json

import pytest

from pageant.actors.grammar.errors import GrammarError
from pageant.actors.parsers.arguments import GLM, GLM_LINES, MINIMAX, QWEN, as_python
from pageant.actors.parsers.base import joined
from pageant.actors.parsers.formats import TOOL_FORMATS
from pageant.protocol.structured_outputs import StructuredOutputsParams as Asked

ANY = {"type": "any_text"}
DIGIT = {"type": "regex", "pattern": "[0-9]"}
CALL = {"type": "tag", "begin": "<tool_call>", "content": DIGIT, "end": "</tool_call>"}
TWO = [CALL, {**CALL, "begin": "<tool_call>x"}]


def const(value):
    return {"type": "const_string", "value": value}


@pytest.fixture
def takes(compiler, tokenization):
    """Tell whether a tree's grammar allows a text, and whole."""
    grammars = {}

    def judge(tree, text) -> bool:
        written = json.dumps(tree)
        if written not in grammars:
            grammars[written] = compiler.compile(Asked(structural_tag={"format": tree}))
        matcher = grammars[written].deep_copy()
        ids = tokenization.encode(text, add_special_tokens=False)
        return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()

    return judge


@pytest.mark.parametrize(
    ("tree", "allowed", "refused"),
    [
        (const("a[ARGS]b"), ["a[ARGS]b"], ["a", "a[ARGS]", "aXb"]),
        (CALL, ["<tool_call>7</tool_call>"], ["7", "<tool_call>x</tool_call>", "<tool_call>7"]),
        (
            {**CALL, "end": [";", "</tool_call>"]},
            ["<tool_call>7;", "<tool_call>7</tool_call>"],
            ["<tool_call>7"],
        ),
        ({**CALL, "content": ANY}, ["<tool_call>any\nthing</tool_call>"], ["<tool_call>any"]),
        ({"type": "json_schema", "json_schema": {"const": [1]}}, ["[1]", "[ 1]"], ["[2]", "[  1]"]),
        ({"type": "grammar", "grammar": 'root ::= "(" root ")" | "x"'}, ["((x))"], ["((x)"]),
        ({"type": "sequence", "elements": [const("a"), DIGIT]}, ["a1"], ["1a", "a"]),
        ({"type": "or", "elements": [const("a"), DIGIT]}, ["a", "1"], ["a1", ""]),
        (
            {"type": "triggered_tags", "triggers": ["<tool_call>"], "tags": TWO},
            ["", "text", "a <tool_call>x7</tool_call> b <tool_call>1</tool_call>"],
            ["<tool_call>y", "a <tool_call>7"],
        ),
        (
            {"type": "triggered_tags", "triggers": ["<f"], "tags": [{**CALL, "begin": "<f=1>"}]},
            ["text <", "a <f=1>7</tool_call> b"],
            ["a <f=2>7</tool_call>"],
        ),
        (
            {
                "type": "triggered_tags",
                "triggers": ["<tool_call>"],
                "tags": TWO,
                "at_least_one": True,
                "stop_after_first": True,
            },
            ["a<tool_call>7</tool_call>"],
            ["a", "<tool_call>7</tool_call>b"],
        ),
        (
            {"type": "tags_with_separator", "tags": TWO, "separator": ", "},
            ["", "<tool_call>7</tool_call>, <tool_call>x1</tool_call>"],
            ["<tool_call>7</tool_call>, ", "x"],
        ),
    ],
)
def test_a_tree_allows_its_language_and_nothing_else(takes, tree, allowed, refused):
    for text in allowed:
        assert takes(tree, text), text
    for text in refused:
        assert not takes(tree, text), text


@pytest.mark.parametrize(
    ("tree", "reason"),
    [
        ({"type": "wish"}, "'wish'"),
        ({"type": "tag", "begin": "a"}, "'end'|form"),
        (const(7), "expected a text"),
        ([], "form"),
        ({"type": "or", "elements": []}, "nothing"),
        ({"type": "json_schema", "json_schema": {"type": "what"}}, "what"),
        (
            {
                "type": "sequence",
                "elements": [const("a")] * 3 + [{"type": "sequence", "elements": []}] * 5000,
            },
            "4096",
        ),
    ],
)
def test_what_has_not_this_form_is_refused_with_a_reason(compiler, tree, reason):
    with pytest.raises(GrammarError, match=reason):
        compiler.compile(Asked(structural_tag={"format": tree}))


TOOLS = {
    "weather": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "now": {"type": "object", "properties": {}, "additionalProperties": False},
}
GOOD = [("weather", '{"city": "Köln", "days": 3}'), ("now", "{}"), ("weather", '{"city": ""}')]
CITY, DAYS = "<parameter=city>\nKöln\n</parameter>\n", "<parameter=days>\n3\n</parameter>\n"
ELSEWHERE = {  # the same arguments
    as_python: {GOOD[0][1]: 'city="Köln", days=3', GOOD[1][1]: "", GOOD[2][1]: 'city=""'},
    QWEN.of_schema: {GOOD[0][1]: CITY + DAYS, GOOD[1][1]: "", GOOD[2][1]: CITY.replace("Köln", "")},
    **{
        form.of_schema: {
            GOOD[0][1]: f"{city}Köln{behind}{days}3{behind}",
            GOOD[1][1]: "",
            GOOD[2][1]: city + behind,
        }
        for form, city, days, behind in (
            (
                GLM_LINES,
                "<arg_key>city</arg_key>\n<arg_value>",
                "<arg_key>days</arg_key>\n<arg_value>",
                "</arg_value>\n",
            ),
            (GLM, "<arg_key>city</arg_key><arg_value>", "<arg_key>days</arg_key><arg_value>", "</arg_value>"),
            (MINIMAX, '<parameter name="city">', '<parameter name="days">', "</parameter>\n"),
        )
    },
}


def written(form, calls) -> str:
    """Return calls as a model writes them."""

    def one(name, arguments):
        shown = ELSEWHERE.get(form.arguments, {}).get(arguments, arguments)
        return form.begin.replace("NAME", name) + shown + form.end

    return form.head + form.separator.join(one(*call) for call in calls) + form.tail


@pytest.mark.parametrize("form", TOOL_FORMATS.values(), ids=TOOL_FORMATS)
def test_calls_that_a_format_allows_are_those_that_it_reads(takes, form):
    many, single = form.calls(TOOLS, one=False), form.calls(TOOLS, one=True)
    assert takes(many, written(form, GOOD)) is not form.single and takes(single, written(form, GOOD[:1]))
    assert not takes(single, written(form, GOOD)) and not takes(many, "It rains.")
    wrong = written(form, [("weather", '{"city": ""}')]).replace("city", "town")
    assert not takes(many, wrong)
    from pageant.actors.parsers.reading import ChatParser

    ids = itertools.count()
    said = ChatParser(None, form.reader(lambda: str(next(ids)), TOOLS)).feed(written(form, GOOD), (), True)
    calls = [(call.name, json.loads(call.arguments)) for call in joined(said.calls)]
    assert calls == [(name, json.loads(arguments)) for name, arguments in GOOD]


@pytest.mark.parametrize("form", TOOL_FORMATS.values(), ids=TOOL_FORMATS)
def test_between_what_else_a_model_says_its_calls_have_their_form(takes, form):
    tree = form.text_with_calls(TOOLS, one=False)
    assert takes(tree, form.answer_begin + "It rains, 100 %.") and takes(tree, written(form, GOOD[:1]))
    assert not form.answer_begin or not takes(tree, "It rains, 100 %.")
    wrong = written(form, [("weather", '{"city": ""}')]).replace("city", "town")
    assert not takes(tree, wrong)


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"enum": ["a b", "c"]}, ["a b", "c"], ["d", '"c"']),
        ({"pattern": "^a+$"}, ["aa"], ["", "ba"]),
        ({"pattern": "b"}, ["b", "abc"], ["ac"]),
        ({"minLength": 1, "maxLength": 3}, ["abc", "a"], ["", "abcd"]),
        ({}, ["", "a\nb </para"], []),
    ],
)
def test_texts_without_quotes_are_by_their_schema(takes, schema, good, bad):
    parameters = {"type": "object", "properties": {"x": {"type": "string", **schema}}, "required": ["x"]}
    tree = TOOL_FORMATS["qwen3_coder"].calls({"f": parameters}, one=True)
    form = TOOL_FORMATS["qwen3_coder"]

    def call(value):
        return f"{form.begin}<parameter=x>\n{value}\n</parameter>\n{form.end}".replace("NAME", "f")

    assert all(takes(tree, call(value)) for value in good)
    assert not any(takes(tree, call(value)) for value in bad)


FREE = [None, {"type": "object"}]


@pytest.mark.parametrize("schema", [*FREE, {"$ref": "#/$defs/F", "$defs": {"F": TOOLS["weather"]}}], ids=str)
@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("qwen3_coder", CITY),
        ("glm45", "<arg_key>city</arg_key>\n<arg_value>a</arg_value>\n"),
        ("pythonic", 'city="a) (\\"b", days=[1]'),
        ("hermes", '{"city": "a"}'),
    ],
)
def test_a_tool_whose_arguments_are_free_can_be_called_with_some(takes, name, arguments, schema):
    form = TOOL_FORMATS[name]
    call = form.head + form.begin.replace("NAME", "f") + arguments + form.end + form.tail
    if name == "pythonic" and schema not in FREE:
        call = call.replace("[1]", "1")
    assert takes(form.calls({"f": schema}, one=True), call) or (name == "hermes" and schema not in FREE)
    assert not takes(form.calls({"f": schema}, one=True), call.replace("f", "g", 1))


ANSWER = {
    "type": "object",
    "properties": {"city": {"$ref": "#/$defs/City"}, "days": {"type": "integer"}},
    "required": ["city", "days"],
    "additionalProperties": False,
    "$defs": {"City": {"type": "string"}},
}


@pytest.mark.parametrize("form", TOOL_FORMATS.values(), ids=TOOL_FORMATS)
@pytest.mark.parametrize("answer", [ANSWER, {"type": "object"}], ids=["schema", "object"])
def test_an_answer_in_json_is_as_free_to_begin_as_a_call(takes, form, answer):
    tree = form.json_or_calls(answer, TOOLS, one=True)
    begin = form.answer_begin
    assert takes(tree, begin + '{"city": "Rome", "days": 3}') and takes(tree, written(form, GOOD[:1]))
    assert not takes(tree, f"{begin}It rains.")
    if answer is ANSWER:
        assert not takes(tree, begin + '{"city": "Rome"}')
        assert not takes(tree, begin + '{"name": "tomorrow", "parameters": {}}')
