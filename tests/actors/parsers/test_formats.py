"""Formats are found by a model's chat template, and what they say as grammars is what their readers read."""

from __future__ import annotations

import json

import pytest

from pageant.actors.parsers.formats import (
    REASONING_MARKS,
    TOOL_FORMATS,
    check_names,
    formats_of,
)
from pageant.actors.parsers.names import TOOL_PARSERS
from pageant.protocol.errors import BadRequest

TEMPLATES = {
    "harmony": "<|start|>assistant<|channel|>analysis<|message|>",
    "qwen3_coder": "'<tool_call>\\n<function=' + tool_call.name + '>\\n<parameter=' ~ tool_call.arguments",
    "glm45": "the following XML format:\n<tool_call>{function-name}\n<arg_key>{arg-key-1}</arg_key>\n<arg_value>{",
    "glm47": "<tool_call>{function-name}<arg_key>{arg-key-1}</arg_key><arg_value>{arg-value-1}</arg_value>",
    "minimax_m2": '<minimax:tool_call>\n<invoke name="tool-name-1">\n<parameter name="param-key-1">',
    "hermes": "{{ '<tool_call>\\n{\"name\": ' ~ name ~ ', \"arguments\": ' }}",
    "deepseek_v3": "<｜tool▁call▁begin｜>' + tool['type'] + '<｜tool▁sep｜>' + name + '\\n' + '```json'",
    "deepseek_v31": "<｜tool▁call▁begin｜>'+ name + '<｜tool▁sep｜>'",
    "mistral": "{{- '[TOOL_CALLS][' }}",
    "mistral_args": "{{- '[TOOL_CALLS]' + name + '[ARGS]' }}",
    "pythonic": "in the format of [func_name1(params_name1=params_value1), func_name2(params)]",
    "granite": "{{- '<|tool_call|>' + message.tool_calls | tojson }}",
    "granite-20b-fc": "{{- '<function_call> ' + tool_call.function | tojson }}",
    "jamba": "{{- '<tool_calls>[' }}{% for call in tool_calls %}",
    "longcat": "{{- '<longcat_tool_call>' }}",
    "internlm": "<|action_start|>{{ '<|plugin|>' }}",
    "phi4_mini_json": "{{ 'functools[' }}",
    "lfm2": "{{- '<|tool_call_start|>[' }}",
    "llama3_json": 'Environment: ipython {"name": function name, "parameters": dictionary}',
}


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_template_tells_the_format(name):
    assert formats_of([TEMPLATES[name]]).tools is TOOL_FORMATS[name]
    assert formats_of([TEMPLATES[name]], tools="none").tools is None
    assert formats_of([TEMPLATES[name]], tools="json").tools is TOOL_FORMATS["json"]


def test_a_template_tells_whether_the_model_thinks():
    assert formats_of(["{{ content.split('</think>')[-1] }}"]).reasoning == REASONING_MARKS["think"]
    assert formats_of(["{{ content }}"]).reasoning is None
    assert formats_of(["[THINK] [/THINK]"]).special


def test_an_unknown_name_is_refused():
    with pytest.raises(ValueError, match="hermes"):
        check_names("tool_call_parser", {"demo": "herms"}, TOOL_FORMATS, TOOL_PARSERS)


def test_trees_of_calls_are_plain_data():
    for form in TOOL_FORMATS.values():
        for tree in (
            form.calls({"f": None}, one=True),
            form.text_with_calls({"f": {"type": "object"}}, one=False),
        ):
            assert json.loads(json.dumps(tree))


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": [1]},
        {"properties": {"a": {}}, "required": 5},
        {"properties": {"a": {"type": "string", "pattern": 5}}},
        {"properties": {"a": {"type": "string", "enum": 5}}},
    ],
    ids=str,
)
def test_parameters_that_are_no_schema_are_their_clients_fault(schema):
    with pytest.raises(BadRequest, match="the parameters of broken are no JSON schema"):
        TOOL_FORMATS["qwen3_coder"].calls({"fine": None, "broken": schema}, one=False)
