"""Values of other kinds than expected, at every place of a request: taken, or refused with a reason."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from pageant.actors.frontend.prompts import Limits
from pageant.actors.http.anthropic.requests import MessagesRequest
from pageant.actors.http.chat.conversation import DEFAULT_RULES
from pageant.actors.http.openai.chat_requests import ChatRequest, as_chat
from pageant.actors.http.openai.input_items import input_items
from pageant.actors.http.openai.response_requests import NAMES, ResponseRequest
from pageant.actors.http.reading import read
from pageant.actors.http.served import Served
from pageant.actors.parsers.formats import formats_of
from pageant.protocol.errors import BadRequest
from pageant.protocol.sampling import SamplingParams

FORMATS = formats_of((), "hermes", "think")
LIMITS = Limits(vocab_size=100, max_model_len=64, max_logprobs=20, defaults=SamplingParams())
SERVED = Served("m", "", LIMITS, None, FORMATS)
ODD = [
    *(None, True, -1, 3, 1.5, 1e308, 10**25, "", "x", "\x00", "a" * 3000),
    *([], [None], [[]], ["x"], [{}], {}, {"x": None}, {"type": "x"}, {"type": {}}, {"": []}),
]
OBJECT = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
LARK = {"type": "grammar", "syntax": "lark", "definition": 'start: "a"'}
CHAT = {
    "model": "m",
    "messages": [
        {"role": "system", "content": "a"},
        {"role": "user", "content": [{"type": "text", "text": "hi"}], "name": "n"},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": [{"type": "text", "text": "t"}]}]},
        {
            "role": "assistant",
            "reasoning": "r",
            "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "c", "content": "r"},
    ],
    "tools": [
        {"type": "function", "function": {"name": "f", "parameters": OBJECT, "strict": True}},
        {"type": "custom", "custom": {"name": "g", "format": LARK}},
        {"type": "web_search", "filters": {"x": 1}},
    ],
    "tool_choice": {"type": "function", "function": {"name": "f"}},
    "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": OBJECT}},
    "stream_options": {"include_usage": True},
    "stop": ["a"],
    "logit_bias": {"5": 1},
    "documents": [{"title": "t"}],
    "metadata": {"a": "b"},
    **{"reasoning_effort": "low", "chat_template_kwargs": {"a": 1}, "vllm_xargs": {"a": 1}, "logprobs": True},
    **{
        "top_logprobs": 2,
        "n": 1,
        "seed": 1,
        "max_tokens": 2,
        "temperature": 1,
        "bad_words": ["q"],
        "stream": True,
    },
}
RESPONSE = {
    "model": "m",
    "instructions": "i",
    "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "a"}]},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "r"}]},
        {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "s"}], "content": []},
        {
            "type": "local_shell_call",
            "call_id": "l",
            "action": {"type": "exec", "command": ["ls"], "env": {}},
        },
        {"type": "custom_tool_call", "call_id": "k", "name": "g", "input": "x"},
    ],
    "tools": [
        {"type": "function", "name": "f", "parameters": OBJECT},
        {"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "g"}]},
        {"type": "custom", "name": "p", "format": LARK},
        {"type": "shell", "environment": {"type": "local"}},
    ],
    "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]},
    "text": {"format": {"type": "json_schema", "name": "x", "schema": OBJECT}, "verbosity": "low"},
    "reasoning": {"effort": "low", "summary": "auto"},
    "include": ["message.output_text.logprobs"],
    "metadata": {"a": "b"},
    **{"top_logprobs": 1, "max_output_tokens": 2, "truncation": "auto", "stop": ["x"], "store": False},
}
MESSAGES = {
    "model": "m",
    "max_tokens": 2,
    "system": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "a"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "t", "signature": "s"},
                {"type": "tool_use", "id": "t", "name": "f", "input": {"a": 1}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "a"}]},
                {"type": "document", "source": {"type": "text", "data": "d"}},
            ],
        },
    ],
    "tools": [
        {"name": "f", "input_schema": OBJECT},
        {"type": "bash_20250124", "name": "bash"},
        {"type": "web_search_20250305", "name": "web_search"},
    ],
    "tool_choice": {"type": "tool", "name": "f"},
    "thinking": {"type": "enabled", "budget_tokens": 1024},
    "output_config": {"effort": "high", "format": {"type": "json_schema", "schema": OBJECT}},
    **{"metadata": {"user_id": "u"}, "stop_sequences": ["x"], "temperature": 1, "top_k": 5, "top_p": 0.5},
}


def prepared(shape: type, body: bytes) -> None:
    """Do with a body all that a server does before the engine gets the request."""
    asked, _ = read(body, shape)
    asked.fields_without_effect(FORMATS)
    if isinstance(asked, ResponseRequest):
        input_items(asked.input, "resp-1")
        chat = as_chat(asked.chat_fields([]), NAMES).chat(SERVED, DEFAULT_RULES, NAMES)
    else:
        chat = asked.chat(SERVED, DEFAULT_RULES)
    chat.sampling_params(FORMATS, chat.constraint(FORMATS))
    chat.parser(FORMATS, lambda length: "id")


def places(value: Any, before: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield before
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield from places(value[key], (*before, key))


def with_value(whole: Any, place: tuple[Any, ...], value: Any) -> Any:
    if not place:
        return value
    made = dict(whole) if isinstance(whole, dict) else list(whole)
    made[place[0]] = with_value(whole[place[0]], place[1:], value)
    return made


@pytest.mark.parametrize(
    ("shape", "body"),
    [(ChatRequest, CHAT), (ResponseRequest, RESPONSE), (MessagesRequest, MESSAGES)],
)
def test_an_odd_value_anywhere_is_taken_or_refused(shape, body):
    whole = json.loads(json.dumps(body))
    prepared(shape, json.dumps(whole).encode())
    reasons = set()
    for place in places(whole):
        for value in ODD:
            try:
                prepared(shape, json.dumps(with_value(whole, place, value)).encode())
            except BadRequest as error:
                reasons.add(str(error))
            except Exception as error:
                raise AssertionError(f"{value!r:.40} at {place}: {error!r}") from error
    assert len(reasons) > 50 and all(reasons)
