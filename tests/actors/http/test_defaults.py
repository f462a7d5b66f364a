"""Defaults of requests that the operator sets."""

import pytest

from pageant.actors.http.chat.conversation import ConversationRules, tokenize_chat
from pageant.actors.http.chat.turns import Turn
from pageant.actors.http.defaults import RequestDefaults
from pageant.actors.http.openai.chat_requests import ChatRequest
from pageant.actors.http.openai.completions import CompletionRequest
from pageant.actors.http.openai.generation import StreamOptions

USAGE = RequestDefaults(usage_in_streams=True)


def completion(**given):
    return CompletionRequest(prompt="x", **given)


def test_without_defaults_a_request_is_the_one_that_came():
    asked = completion(stream=True)
    assert asked.with_defaults(RequestDefaults()) is asked


@pytest.mark.parametrize("options", [None, StreamOptions(include_usage=False)])
def test_every_stream_ends_with_the_usage(options):
    asked = completion(stream=True, stream_options=options).with_defaults(USAGE)
    assert asked.tells_usage and not asked.tells_usage_always


def test_usage_with_every_chunk_where_it_is_asked_for_and_none_without_a_stream():
    every_chunk = StreamOptions(continuous_usage_stats=True)
    asked = completion(stream=True, stream_options=every_chunk).with_defaults(USAGE)
    assert asked.tells_usage_always
    assert completion().with_defaults(USAGE).stream_options is None


@pytest.mark.parametrize("said,found", [(None, True), (False, False), (True, True)])
def test_tokens_are_ids_unless_a_request_says_otherwise(said, found):
    asked = completion(return_tokens_as_token_ids=said).with_defaults(RequestDefaults(tokens_as_ids=True))
    assert asked.return_tokens_as_token_ids is found


def test_variables_of_templates_are_there_where_a_request_does_not_set_them():
    rules = ConversationRules(template_kwargs={"enable_thinking": False, "more": 1})
    turns = [Turn(role="user", content="x")]
    assert tokenize_chat(turns, rules=rules).template_kwargs == '{"enable_thinking":false,"more":1}'
    found = tokenize_chat(turns, template_kwargs={"more": 2}, rules=rules)
    assert found.template_kwargs == '{"enable_thinking":false,"more":2}'
    asked = ChatRequest(messages=turns, chat_template_kwargs={"enable_thinking": True})
    assert asked.conversation(rules).template_kwargs == '{"enable_thinking":true,"more":1}'
