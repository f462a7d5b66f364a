"""Schemas that clients send, kept to, refused or named; and bytes of tokens that are no characters."""

from __future__ import annotations

import json

import httpx
import jsonschema
import pytest

CHAT = "/v1/chat/completions"
TOLD = "x-pageant-fields-without-effect"
SEVEN = {
    "type": "object",
    "properties": {"n": {"const": 7}},
    "required": ["n"],
    "additionalProperties": False,
}


def ask(http, **fields):
    request = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 60, "seed": 1, **fields}
    return http.post(CHAT, json=request)


@pytest.mark.parametrize(
    "form",
    [
        {"type": "json_object", "schema": SEVEN},
        {"type": "json_schema", "schema": SEVEN},
        {"type": "json_schema", "json_schema": {"name": "x", "schema": SEVEN}},
    ],
)
def test_a_schema_is_kept_to_wherever_it_stands(http, form):
    answer = ask(http, response_format=form)
    assert json.loads(answer.json()["choices"][0]["message"]["content"]) == {"n": 7}


@pytest.mark.parametrize(
    "form",
    [
        {"type": "json_schema"},
        {"type": "json_schema", "json_schema": {"name": "x", "strict": True}},
        {"type": "json_schema", "json_schema": {"name": "x", "json_schema": SEVEN}},
        {"type": "json_schema", "schema": SEVEN, "json_schema": {"name": "x", "schema": SEVEN}},
        {"type": "text", "schema": SEVEN},
    ],
)
def test_a_schema_that_is_missing_or_too_much_is_an_error(http, form):
    answer = ask(http, response_format=form)
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "response_format"


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        (lambda schema: {"response_format": {"type": "json_schema", "schema": schema}}, "response_format"),
        (lambda schema: {"structured_outputs": {"json": schema}}, "structured_outputs.json"),
        (lambda schema: {"structured_outputs": {"json": json.dumps(schema)}}, "structured_outputs.json"),
    ],
)
def test_a_format_that_nobody_knows_is_named_in_the_header(http, fields, place):
    answer = ask(http, **fields({"type": "string", "format": "password", "maxLength": 5}))
    assert answer.status_code == 200
    assert answer.headers[TOLD] == f"{place} (format: password)"


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1},
        {"type": "integer", "minimum": 2**53 + 1, "maximum": 2**53 + 3},
        {"type": "number", "minimum": -1.7976931348623157e308, "maximum": 1.7976931348623157e308},
    ],
)
def test_ranges_of_64_bits_are_kept_to(http, schema):
    for seed in range(4):
        text = ask(http, structured_outputs={"json": schema}, seed=seed).json()["choices"][0]["message"][
            "content"
        ]
        jsonschema.validate(json.loads(text), schema)


@pytest.mark.parametrize("value", [2**53 + 1, 12345678901234567890, -(2**63)])
def test_an_integer_that_would_be_rounded_is_refused_by_name(http, value):
    answer = ask(http, structured_outputs={"json": {"enum": [1, value]}})
    assert answer.status_code == 400
    assert f"the integer {value} cannot be had exactly" in answer.json()["error"]["message"]


PARAMETERS = [
    None,
    {},
    {"title": "X"},
    {"properties": {"q": {"const": 1}}},
    {"type": ["object", "null"], "properties": {"q": {"const": 1}}},
    {"$ref": "#/$defs/a", "$defs": {"a": {"properties": {"q": {"const": 1}}}}},
    {"type": "object", "properties": {}, "additionalProperties": False},
]


@pytest.mark.parametrize("parser", ["hermes", "llama3_json", "qwen3_coder", "pythonic", "mistral", "json"])
def test_arguments_of_a_call_are_an_object_whatever_parameters_leave_out(start, parser):
    url = start(tool_call_parser=parser).served_at().split()[-1]
    with httpx.Client(base_url=url, timeout=60) as http:
        whole = 0
        for parameters in PARAMETERS:
            function = {"name": "now"} if parameters is None else {"name": "now", "parameters": parameters}
            tools = [{"type": "function", "function": function}]
            answer = ask(
                http, tools=tools, tool_choice="required", temperature=1.5, parallel_tool_calls=False
            )
            assert answer.status_code == 200, answer.text
            (choice,) = answer.json()["choices"]
            if choice["finish_reason"] == "length":
                continue
            whole += 1
            (call,) = choice["message"]["tool_calls"]
            assert isinstance(json.loads(call["function"]["arguments"]), dict)
        assert whole >= 2


def test_parameters_of_another_type_are_refused_by_name(http):
    tools = [{"type": "function", "function": {"name": "now", "parameters": {"type": "string"}}}]
    answer = ask(http, tools=tools, tool_choice="required")
    assert answer.status_code == 400
    assert "parameters have the type 'string'; expected object" in answer.json()["error"]["message"]


@pytest.mark.parametrize("text", ["caf\u00e9", "\U0001f600", "\u65e5\u672c\u8a9e"])
def test_bytes_of_log_probabilities_are_the_tokens_own(http, text):
    asked = {"structured_outputs": {"choice": [text]}, "logprobs": True, "top_logprobs": 1}
    whole = ask(http, **asked).json()["choices"][0]
    assert whole["message"]["content"] == text
    content = whole["logprobs"]["content"]
    *content, end = content
    assert end["token"] == "<|endoftext|>"
    assert bytes(byte for token in content for byte in token["bytes"]) == text.encode()
    assert any(bytes(token["bytes"]) != token["token"].encode() for token in content)
