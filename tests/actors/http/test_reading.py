"""Requests' bodies: null is what is not given, wherever something need not be given."""

from __future__ import annotations

import json

import msgspec
import pytest

from pageant.actors.http.anthropic.requests import CountRequest, MessagesRequest
from pageant.actors.http.openai.chat_requests import ChatRequest
from pageant.actors.http.openai.completions import CompletionRequest
from pageant.actors.http.openai.response_requests import ResponseRequest
from pageant.actors.http.openai.tokens import TokenizeRequest
from pageant.actors.http.reading import read
from pageant.protocol.errors import BadRequest
from pageant.protocol.sampling import SamplingParams

QUESTION = [{"role": "user", "content": "hi"}]
BODIES = {
    ChatRequest: {"messages": QUESTION},
    CompletionRequest: {"prompt": "a"},
    ResponseRequest: {"input": "a"},
    MessagesRequest: {"messages": QUESTION, "max_tokens": 1},
    CountRequest: {"messages": QUESTION},
    TokenizeRequest: {"prompt": "a"},
}


def nulls(shape):
    """Return all fields that need not be given."""
    return {field.name: None for field in msgspec.structs.fields(shape) if not field.required}


@pytest.mark.parametrize("shape", BODIES)
def test_null_is_taken_for_whatever_need_not_be_given(shape):
    asked, unknown = read(json.dumps(nulls(shape) | BODIES[shape]).encode(), shape)
    assert not unknown and asked == read(json.dumps(BODIES[shape]).encode(), shape)[0]


def test_nulls_of_options_of_streams_are_not_true():
    body = {"prompt": "a", "stream": True, "stream_options": {"include_usage": None}}
    asked, _ = read(json.dumps(body).encode(), CompletionRequest)
    assert asked.tells_usage is False and asked.tells_usage_always is False


def test_what_is_not_given_is_the_default():
    chat = ChatRequest(messages=())
    assert chat.settings() == {"priority": 0, "tenant": "", "cache_salt": None, "deadline": None}
    assert chat.sampling_params(SamplingParams(), None).n == 1
    asked, _ = read(json.dumps(BODIES[ChatRequest]).encode(), ChatRequest)
    conversation = asked.conversation()
    assert conversation.add_generation_prompt is True and conversation.continue_final_message is False
    response = ResponseRequest(input="a")
    assert response.is_stored and not ResponseRequest(input="a", store=False).is_stored


@pytest.mark.parametrize("name", ["guided_json", "guided_regex", "guided_choice", "guided_grammar"])
def test_older_names_of_structured_outputs_are_refused_with_the_newer(name):
    body = {"prompt": "a", name: {}}
    with pytest.raises(BadRequest, match=f"{name} is an older name; expected structured_outputs") as refused:
        read(json.dumps(body).encode(), CompletionRequest)
    assert refused.value.parameter == name
    assert read(json.dumps(body | {name: None}).encode(), CompletionRequest)[1] == []


def test_what_is_asked_of_structured_outputs_is_not_passed_over():
    body = {"prompt": "a", "structured_outputs": {"jsn": {}}}
    with pytest.raises(BadRequest, match="jsn") as refused:
        read(json.dumps(body).encode(), CompletionRequest)
    assert refused.value.parameter == "structured_outputs"


def test_parts_that_are_no_text_are_refused_by_their_kind():
    parts = [{"type": "text", "text": "a"}, {"type": "file", "file": {"file_data": "data:,"}}]
    body = {"messages": [{"role": "user", "content": parts}]}
    asked, _ = read(json.dumps(body).encode(), ChatRequest)
    with pytest.raises(BadRequest, match=r"messages\[0\]\.content\[1\]\.type is 'file'; expected 'text'"):
        asked.conversation()


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "messages"),
        ({"messages": 5}, "messages"),
        ({"messages": [{"role": 5}]}, "messages"),
        ({"messages": [{}]}, "messages"),
        ({"messages": QUESTION, "stop": [5]}, "stop"),
    ],
)
def test_the_field_that_is_wrong_is_named(body, field):
    with pytest.raises(BadRequest) as refused:
        read(json.dumps(body).encode(), ChatRequest)
    assert refused.value.parameter == field


def test_a_body_that_is_no_object_is_about_no_field():
    with pytest.raises(BadRequest) as refused:
        read(b"[]", ChatRequest)
    assert refused.value.parameter is None
