"""Conversations as clients send them: also with what they got from a server, as it was written there."""

from __future__ import annotations

import base64
import json

import pytest
from openai.types.chat import ChatCompletionMessage

from pageant.actors.http.chat.conversation import ConversationRules, check_lines
from pageant.actors.http.openai.chat_requests import ChatRequest
from pageant.actors.http.openai.response_requests import ResponseRequest
from pageant.actors.http.reading import read
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
        {"reasoning_details": [{"type": "reasoning.text", "text": "hm"}]},
        {"provider_specific_fields": {"refusal": None}},
        {"thinking_blocks": [{"type": "thinking", "thinking": "hm", "signature": "x"}]},
        {"cache_control": {"type": "ephemeral"}},
    ],
    ids=str,
)
def test_unknown_fields_of_past_messages_are_named(more):
    body = {"messages": [{"role": "assistant", "content": "a"} | more]}
    asked, unknown = read(json.dumps(body).encode(), ChatRequest)
    assert unknown == [f"messages[].{next(iter(more))}"]
    assert asked.conversation().messages[0].content == "a"


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_past_thoughts_have_two_names(name):
    assert turns({"role": "assistant", "content": "a", name: "hm"})[0].reasoning_content == "hm"


def test_the_older_form_of_a_call_is_taken():
    called = {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}}
    first, second = turns(called, {"role": "function", "name": "f", "content": "1"})
    assert [(call.name, call.arguments) for call in first.tool_calls] == [("f", "{}")]
    assert (first.content, second.role, second.content) == (None, "tool", "1")


@pytest.mark.parametrize(
    ("arguments", "expected"), [('{"q": ', '{"q": '), (None, "{}"), ({"q": 1}, '{"q":1}'), ([1], "[1]")]
)
def test_arguments_of_past_calls_may_be_anything(arguments, expected):
    call = {"id": None, "type": "function", "function": {"name": "f", "arguments": arguments}}
    (turn,) = turns({"role": "assistant", "content": None, "tool_calls": [call]})
    assert [(made.id, made.arguments) for made in turn.tool_calls] == [("", expected)]


def test_a_custom_tools_call_is_that_of_a_function_with_a_text():
    call = {"id": "c", "type": "custom", "custom": {"name": "patch", "input": 'a "b"'}}
    (turn,) = turns({"role": "assistant", "tool_calls": [call]})
    assert json.loads(turn.tool_calls[0].arguments) == {"input": 'a "b"'}


@pytest.mark.parametrize("kind", ["input_audio", "input_video", "file", "document"])
@pytest.mark.parametrize("role", ["user", "tool", "assistant"])
def test_sounds_and_files_are_refused_with_their_place(kind, role):
    content = ["a", {"type": "text", "text": "b"}, {"type": kind, kind: {}}]
    with pytest.raises(BadRequest, match=rf"messages\[0\].content\[2\].type is '{kind}'"):
        turns({"role": role, "content": content})


PIXEL = "data:image/png;base64," + base64.b64encode(b"pixels").decode()
IMAGES = [
    {"type": "image_url", "image_url": {"url": PIXEL, "detail": "low"}},
    {"type": "image_url", "image_url": PIXEL},
    {"type": "input_image", "image_url": PIXEL},
]


@pytest.mark.parametrize("part", IMAGES)
@pytest.mark.parametrize("role", ["user", "tool", "assistant"])
def test_images_keep_their_places_among_texts(part, role):
    (turn,) = turns({"role": role, "content": ["a", part, {"type": "text", "text": "b"}, part]})
    assert turn.content == "a\nb"
    assert [one if isinstance(one, str) else one.data.tobytes() for one in turn.parts] == [
        *("a", b"pixels"),
        *("b", b"pixels"),
    ]


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ({"type": "image_url"}, r"content\[0\] has no image_url"),
        ({"type": "image_url", "image_url": {}}, r"content\[0\].image_url.url is a NoneType"),
        ({"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}, "expected a data: URL"),
        ({"type": "image_url", "image_url": {"url": "http://127.0.0.1/a.png"}}, "expected a data: URL"),
        ({"type": "image_url", "image_url": {"url": "data:image/png,abc"}}, "without base64"),
        ({"type": "image_url", "image_url": {"url": "data:image/png;base64,"}}, "has no bytes"),
        ({"type": "image_url", "image_url": {"url": "data:image/png;base64,a-b"}}, "no base64"),
        ({"type": "image_url", "image_url": {"url": f"{PIXEL}{'AAAA' * 8_000_000}"}}, "at most 20971520"),
        ({"type": "input_image", "file_id": "file-1"}, "files are not kept here"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_images_that_cannot_be_taken_are_refused_with_their_place(part, message):
    with pytest.raises(BadRequest, match=rf"messages\[0\]\..*{message}"):
        turns({"role": "user", "content": [part]})


def test_parts_of_other_kinds_are_named_and_thoughts_are_thoughts():
    parts = [{"type": "thinking", "thinking": "hm"}, "a", {"type": "redacted_thinking", "data": "x"}]
    body = {"messages": [{"role": "assistant", "content": parts}]}
    asked, unknown = read(json.dumps(body).encode(), ChatRequest)
    assert asked.fields_without_effect() == ["messages[].content:redacted_thinking"]
    assert unknown == []  # the part is named as a whole
    (turn,) = asked.conversation().messages
    assert (turn.content, turn.reasoning_content) == ("a", "hm")


@pytest.mark.parametrize("content", [None, [], "", [{"type": "text", "text": ""}]], ids=str)
@pytest.mark.parametrize("role", ["system", "user", "assistant", "tool"])
def test_contents_may_be_empty(role, content):
    assert turns({"role": role, "content": content, "name": None})[0].content == ""


BILLING = "x-anthropic-billing-header: cc_version=2.1; cch={};"


@pytest.mark.parametrize("content", [BILLING + "\nBe brief.", [BILLING, "Be brief."]], ids=["text", "parts"])
def test_a_line_that_changes_with_every_request_is_left_out(content):
    def asked(number):
        given = [part.format(number) for part in ([content] if isinstance(content, str) else content)]
        parts = [{"type": "text", "text": part} for part in given]
        return turns({"role": "system", "content": parts}, {"role": "user", "content": "hi"})

    assert asked(1) == asked(2) and asked(1)[0].content == "Be brief."


def test_a_system_message_of_volatile_lines_alone_is_none_and_others_stay():
    user = {"role": "user", "content": BILLING}
    assert [turn.role for turn in turns({"role": "system", "content": BILLING}, user)] == ["user"]
    assert turns(user)[0].content == BILLING
    rules = ConversationRules(volatile_lines=())
    kept = read(json.dumps({"messages": [{"role": "system", "content": BILLING}]}).encode(), ChatRequest)[0]
    assert kept.conversation(rules).messages[0].content == BILLING


def test_volatile_lines_of_the_operators_own_are_checked():
    check_lines(["run [0-9]+"])
    with pytest.raises(ValueError, match=r"volatile_prompt_lines has '\('; expected a regular expression"):
        check_lines(["("])


@pytest.mark.parametrize(
    ("effort", "own", "thinks"),
    [("none", {}, False), ("low", {}, True), ("low", {"enable_thinking": False}, False)],
)
def test_effort_reaches_the_template(effort, own, thinks):
    body = {
        "messages": [{"role": "user", "content": "a"}],
        "reasoning_effort": effort,
        "chat_template_kwargs": own,
    }
    asked, _ = read(json.dumps(body).encode(), ChatRequest)
    given = json.loads(asked.conversation().template_kwargs)
    assert (given["reasoning_effort"], given["enable_thinking"]) == (effort, thinks)


def test_documents_reach_the_template_and_templates_only_where_they_may():
    documents = [{"title": "a", "text": "b"}]
    body = {
        "messages": [{"role": "user", "content": "a"}],
        "documents": documents,
        "chat_template": "{{ messages }}",
    }
    asked, _ = read(json.dumps(body).encode(), ChatRequest)
    with pytest.raises(BadRequest, match="trust_request_chat_template"):
        asked.conversation()
    conversation = asked.conversation(ConversationRules(takes_templates=True))
    assert conversation.chat_template == "{{ messages }}"
    assert json.loads(conversation.template_kwargs) == {"documents": documents}


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
    shown = request.conversation().tools
    assert shown is not None and json.dumps(json.loads(shown)[0]) == json.dumps(tool)
