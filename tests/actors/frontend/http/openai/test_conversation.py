"""Conversations as clients send them: also with what they got from a server, as it was written there."""

from __future__ import annotations

import json

import pytest
from openai.types.chat import ChatCompletionMessage

from pageant.actors.frontend.http.openai.chat import ChatRequest
from pageant.actors.frontend.http.openai.conversation import tokenize_chat
from pageant.actors.frontend.http.openai.response_requests import ResponseRequest
from pageant.actors.frontend.http.reading import read
from pageant.protocol.errors import BadRequest


def turns(*messages):
    """The conversation of these, as the tokenizer takes it."""
    return read(json.dumps({"messages": messages}).encode(), ChatRequest)[0].conversation().messages


CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}


@pytest.mark.parametrize("more", [{}, {"tool_calls": [CALL]}, {"annotations": []}], ids=str)
def test_an_answer_of_openais_client_can_be_sent_back(more):
    answer = ChatCompletionMessage(role="assistant", content="It is.", **more).model_dump()
    assert {"annotations", "audio", "function_call", "refusal"} <= answer.keys()
    (turn,) = turns(answer)
    assert (turn.role, turn.content) == ("assistant", "It is.")
    assert [call.name for call in turn.tool_calls] == ["f"] * len(more.get("tool_calls", ()))


@pytest.mark.parametrize(
    "more",
    [
        {"audio": {"id": "a"}},
        {"function_call": {"name": "f", "arguments": "{}"}},
        {"annotations": [1]},
        {"x": 1},
    ],
    ids=str,
)
def test_what_is_not_served_is_refused_where_it_says_something(more):
    with pytest.raises(BadRequest, match=next(iter(more))):
        turns({"role": "assistant", "content": "a"} | more)


def test_a_part_may_be_marked_for_anothers_cache():
    part = {"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}
    assert turns({"role": "user", "content": [part]})[0].content == "hi"


def test_a_developer_is_the_system_in_chats_and_in_responses():
    message = {"role": "developer", "content": "Be short."}
    assert turns(message)[0].role == "system"
    response, _ = read(json.dumps({"input": [message]}).encode(), ResponseRequest)
    assert [turn.message("").role for turn in response.turns()] == ["system"]


def test_parts_of_a_text_begin_on_lines_of_their_own():
    parts = [{"type": "text", "text": text} for text in ("Summarize:", "A document.")]
    assert turns({"role": "user", "content": parts})[0].content == "Summarize:\nA document."


def test_templates_are_shown_tools_as_clients_write_them():
    tool = {
        "type": "function",
        "function": {"name": "f", "description": "d", "parameters": {"type": "object"}},
    }
    request, _ = read(
        json.dumps({"messages": [{"role": "user", "content": "a"}], "tools": [tool]}).encode(), ChatRequest
    )
    shown = tokenize_chat(request.messages, tools=request.tools).tools
    assert shown is not None and json.dumps(json.loads(shown)[0]) == json.dumps(tool)
