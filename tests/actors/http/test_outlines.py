"""Fields that are not known are named, and nulls are what is not given, at every depth."""

from __future__ import annotations

import json

import pytest

from pageant.actors.http.anthropic.requests import MessagesRequest
from pageant.actors.http.openai.chat_requests import ChatRequest
from pageant.actors.http.openai.completions import CompletionRequest
from pageant.actors.http.openai.response_requests import ResponseRequest
from pageant.actors.http.reading import read
from pageant.protocol.errors import BadRequest

USER = {"role": "user", "content": "hi"}
FUNCTION = {"name": "f", "parameters": {"type": "object", "x-own": {"y": 1}}}
TOOL = {"type": "function", "function": FUNCTION}
RESULT = {"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": "a", "x": 1}]}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def unknown(shape, **body):
    return read(json.dumps(body).encode(), shape)[1]


@pytest.mark.parametrize(
    ("shape", "body", "expected"),
    [
        (
            ChatRequest,
            {"messages": [USER | {"x": 1}, USER | {"x": 2, "y": 1}]},
            ["messages[].x", "messages[].y"],
        ),
        (
            ChatRequest,
            {"messages": [USER, {"role": "assistant", "tool_calls": [CALL | {"extra_content": {}}]}]},
            ["messages[].tool_calls[].extra_content"],
        ),
        (
            ChatRequest,
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "a", "x": 1}, "b"]}]},
            ["messages[].content[].x"],
        ),
        (ChatRequest, {"messages": [USER], "tools": [TOOL | {"x": 1}]}, ["tools[].x"]),
        (ChatRequest, {"messages": [USER], "stream_options": {"x": False}}, ["stream_options.x"]),
        (ChatRequest, {"messages": [USER], "chat_template_kwargs": {"x": 1}}, []),
        (CompletionRequest, {"prompt": "a", "stream_options": {"x": 1}, "y": 1}, ["stream_options.x", "y"]),
        (ResponseRequest, {"input": [USER | {"phase": "final"}]}, ["input[].phase"]),
        (ResponseRequest, {"input": "a", "text": {"x": 1}}, ["text.x"]),
        (
            MessagesRequest,
            {
                "max_tokens": 1,
                "messages": [{"role": "user", "content": [RESULT]}],
            },
            ["messages[].content[].content[].x"],
        ),
    ],
)
def test_unknown_fields_are_named_with_their_place(shape, body, expected):
    assert unknown(shape, **body) == expected


@pytest.mark.parametrize(
    ("shape", "body"),
    [
        (ChatRequest, {"messages": [USER | {"x": None, "reasoning": None, "tool_calls": None}]}),
        (
            ChatRequest,
            {"messages": [USER, {"role": "assistant", "tool_calls": [CALL | {"id": None, "type": None}]}]},
        ),
        (
            ChatRequest,
            {"messages": [USER], "tools": [{"type": None, "function": FUNCTION | {"strict": None}}]},
        ),
        (
            ChatRequest,
            {
                "messages": [USER],
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": None, "schema": {}, "strict": None},
                },
            },
        ),
        (
            ChatRequest,
            {"messages": [USER], "structured_outputs": {"choice": ["a"], "disable_any_whitespace": None}},
        ),
        (ResponseRequest, {"input": [USER | {"id": None, "type": None, "status": None}], "x": None}),
        (ResponseRequest, {"input": "a", "tools": [{"type": None, "name": "f", "format": None}]}),
        (
            MessagesRequest,
            {"max_tokens": 1, "messages": [USER], "tools": [{"name": "f", "input_schema": None}]},
        ),
    ],
)
def test_nulls_are_not_given_at_every_depth(shape, body):
    assert unknown(shape, **body) == []


def test_what_is_wrong_is_said_of_its_place():
    with pytest.raises(BadRequest, match=r"`\$.messages\[0\].role`") as refused:
        unknown(ChatRequest, messages=[{"role": 1, "content": None}])
    assert refused.value.parameter == "messages"


ODD = {
    "name": 3,
    "content": 4,
    "input": 1,
    "text": [],
    "thinking": 0,
    "tools": 5,
    "parameters": "no",
    "function": 1,
}


@pytest.mark.parametrize(
    ("shape", "body"),
    [
        (ChatRequest, {"messages": [USER], "tools": [{"type": "future", **ODD}]}),
        (ChatRequest, {"messages": [{"role": "user", "content": [{"type": "future", **ODD}]}]}),
        (ResponseRequest, {"input": "a", "tools": [{"type": "future", **ODD}]}),
        (ResponseRequest, {"input": [USER, {"type": "future", "role": {}, **ODD}]}),
        (ResponseRequest, {"input": [{"role": "user", "content": [{"type": "future", **ODD}]}]}),
        (
            MessagesRequest,
            {"max_tokens": 1, "messages": [USER], "tools": [{"type": "future_20300101", **ODD}]},
        ),
        (
            MessagesRequest,
            {"max_tokens": 1, "messages": [{"role": "user", "content": [{"type": "future", **ODD}]}]},
        ),
    ],
)
def test_objects_of_types_that_are_not_known_may_hold_anything(shape, body):
    request, names = read(json.dumps({"model": "m", **body}).encode(), shape)
    assert any("future" in name for name in [*request.fields_without_effect(), *names])


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content"])
def test_thoughts_that_are_no_text_are_named(field):
    replayed = {"role": "assistant", "content": "a", field: [{"type": "reasoning.text", "text": "hm"}]}
    request, _ = read(json.dumps({"messages": [replayed]}).encode(), ChatRequest)
    assert request.fields_without_effect() == [f"messages[].{field}"]


def test_thoughts_in_parts_of_a_part_are_thoughts():
    thought = {"type": "thinking", "thinking": [{"type": "text", "text": "h"}, {"type": "text", "text": "m"}]}
    replayed = {"role": "assistant", "content": [thought, {"type": "text", "text": "a"}]}
    request, unknown = read(json.dumps({"messages": [replayed]}).encode(), ChatRequest)
    assert (request.messages[0].thoughts(), request.messages[0].text(""), unknown) == ("hm", "a", [])
