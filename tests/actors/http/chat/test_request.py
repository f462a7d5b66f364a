"""The neutral chat: requests of both APIs become the same one."""

from __future__ import annotations

import json

import msgspec
import pytest

from pageant.actors.frontend.prompts import Limits
from pageant.actors.http.anthropic.requests import MessagesRequest
from pageant.actors.http.chat.conversation import DEFAULT_RULES
from pageant.actors.http.chat.request import Chat
from pageant.actors.http.openai.chat_requests import ChatRequest
from pageant.actors.http.reading import read
from pageant.actors.http.served import Served
from pageant.actors.parsers.formats import formats_of
from pageant.protocol.errors import BadRequest
from pageant.protocol.sampling import SamplingParams

LIMITS = Limits(vocab_size=100, max_model_len=64, max_logprobs=5, defaults=SamplingParams(top_k=7))
SERVED = Served("m", "", LIMITS, None)
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


def chat(shape: type[ChatRequest | MessagesRequest], /, served: Served = SERVED, **fields: object) -> Chat:
    asked, _ = read(json.dumps(fields).encode(), shape)
    return asked.chat(served, DEFAULT_RULES)


def plain(value: object) -> object:
    """Return a value that compares by what it holds, which messages do not."""
    return msgspec.to_builtins(value) if isinstance(value, msgspec.Struct) else value


def openai(**fields: object) -> Chat:
    said = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}]
    return chat(ChatRequest, messages=said, max_tokens=9, **fields)


def anthropic(served: Served = SERVED, **fields: object) -> Chat:
    said = [{"role": "user", "content": "hi"}]
    return chat(MessagesRequest, served, messages=said, system="Be brief.", max_tokens=9, **fields)


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ({}, {}),
        (
            {"stop_sequences": ["x"], "temperature": 0.5, "top_p": 0.9, "top_k": 3, "stream": True},
            {"stop": ["x"], "temperature": 0.5, "top_p": 0.9, "top_k": 3, "stream": True},
        ),
        ({"metadata": {"user_id": "ann"}}, {"user": "ann"}),
        ({"output_config": {"effort": "high"}}, {"reasoning_effort": "high"}),
        (
            {"thinking": {"type": "disabled"}},
            {"chat_template_kwargs": {"enable_thinking": False, "thinking": False}},
        ),
        (
            {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
            {"response_format": {"type": "json_schema", "json_schema": {"name": "o", "schema": SCHEMA}}},
        ),
        *(
            (
                {"tools": [{"name": "f", "input_schema": PARAMETERS}], "tool_choice": theirs},
                {
                    "tools": [{"type": "function", "function": {"name": "f", "parameters": PARAMETERS}}],
                    "tool_choice": ours,
                },
            )
            for theirs, ours in (
                ({"type": "auto"}, "auto"),
                ({"type": "any"}, "required"),
                ({"type": "none"}, "none"),
                ({"type": "tool", "name": "f"}, {"type": "function", "function": {"name": "f"}}),
            )
        ),
    ],
)
def test_the_same_wish_in_both_shapes_is_the_same_chat(theirs, ours):
    first, second = anthropic(**theirs), openai(**ours)
    for name in Chat.__dataclass_fields__:
        if name != "names":
            assert plain(getattr(first, name)) == plain(getattr(second, name)), name
    assert first.params.top_k == ours.get("top_k", 7)


def test_only_a_model_that_marks_its_thoughts_keeps_to_their_budget():
    thinking = {"type": "enabled", "budget_tokens": 5}
    marks = formats_of(["<think></think>"], "none", "deepseek_r1")
    assert anthropic(thinking=thinking).params.thinking_token_budget is None
    served = Served("m", "", LIMITS, None, marks)
    assert anthropic(served, thinking=thinking).params.thinking_token_budget == 5


@pytest.mark.parametrize(
    ("fields", "parameter", "message"),
    [
        ({"temperature": -1}, "temperature", "temperature is -1"),
        ({"stop_sequences": [""]}, "stop_sequences", "stop_sequences"),
        (
            {"output_config": {"format": {"type": "json_schema"}}},
            "output_config.format",
            "output_config.format has",
        ),
        ({"output_config": {"format": {"type": "no"}}}, "output_config.format", ""),
        ({"output_config": {"format": {"type": "json_schema", "schema": 3}}}, "output_config.format", ""),
        (
            {"output_config": {"effort": 3}},
            "output_config.effort",
            "output_config.effort is 3; expected a text",
        ),
        (
            {"tool_choice": {"type": "any"}, "tools": [{"type": "web_search_20250305"}]},
            "tool_choice",
            "expected tools",
        ),
    ],
)
def test_errors_have_the_names_that_anthropics_clients_know(fields, parameter, message):
    with pytest.raises(BadRequest) as refused:
        anthropic(**fields)
    assert refused.value.parameter == parameter and message in str(refused.value)


@pytest.mark.parametrize(
    ("error", "found"),
    [
        (BadRequest("stop is 3", "stop"), "halt is 3"),
        (BadRequest("stop[1] is 3", "stop"), "halt[1] is 3"),
        (BadRequest("stop.regex is 3", "stop", "stop.regex"), "halt is 3"),
        (BadRequest("stopping is 3", "stop"), "stopping is 3"),
        (BadRequest("there is no stop", "stop"), "there is no stop"),
    ],
)
def test_an_error_is_renamed_where_it_names_its_parameter(error, found):
    renamed = error.renamed("halt")
    assert (str(renamed), renamed.parameter) == (found, "halt")
