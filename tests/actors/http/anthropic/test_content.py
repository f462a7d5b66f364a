"""Messages and tools of Anthropic's API, as Claude Code and others send them."""

from __future__ import annotations

import base64
import json

import pytest

from pageant.actors.http.anthropic.requests import CountRequest, MessagesRequest
from pageant.actors.http.reading import read
from pageant.protocol.errors import BadRequest

USER = {"role": "user", "content": "hi"}


def asked(*messages, shape=MessagesRequest, **fields):
    body = {"max_tokens": 1, "messages": list(messages or [USER]), **fields}
    return read(json.dumps(body).encode(), shape)[0]


def turns(*blocks, role="user"):
    return asked({"role": role, "content": list(blocks)}, USER).conversation().messages[:-1]


def result(content, **more):
    return {"type": "tool_result", "tool_use_id": "t", "content": content, **more}


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (None, ""),
        ("a", "a"),
        ([], ""),
        ([{"type": "text", "text": "a"}, {"type": "text", "text": "b", "cache_control": None}], "ab"),
        ([{"type": "tool_reference", "tool_name": "Bash"}], "Bash"),
        (
            [
                {
                    "type": "search_result",
                    "source": "x",
                    "title": "t",
                    "content": [{"type": "text", "text": "a"}],
                }
            ],
            "a",
        ),
        ([{"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "a"}}], "a"),
    ],
)
def test_results_of_tools_have_a_text(content, text):
    (turn,) = turns(result(content, is_error=True))
    assert (turn.role, turn.tool_call_id, turn.content) == ("tool", "t", text)


def test_what_an_assistant_did_is_told_and_what_servers_did_is_named():
    blocks = [
        {"type": "thinking", "thinking": "hm", "signature": None},
        {"type": "redacted_thinking", "data": "x"},
        {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "x"}},
        {
            "type": "web_search_tool_result",
            "tool_use_id": "s",
            "content": [{"type": "web_search_result", "url": "x"}],
        },
        {"type": "text", "text": "a"},
        {"type": "tool_use", "id": "t", "name": "f", "input": None},
        {"type": "mcp_tool_use", "id": "m", "name": "g", "server_name": "s", "input": {"a": 1}},
    ]
    given = asked({"role": "assistant", "content": blocks}, {"role": "user", "content": [result("r")]})
    kinds = ("redacted_thinking", "server_tool_use", "web_search_tool_result")
    assert given.fields_without_effect() == [f"messages[].content:{kind}" for kind in kinds]
    said, _ = given.conversation().messages
    assert (said.content, said.reasoning_content) == ("a", "hm")
    assert [(call.id, call.name, call.arguments) for call in said.tool_calls] == [
        ("t", "f", "{}"),
        ("m", "g", '{"a":1}'),
    ]


def test_files_are_refused_with_their_place():
    block = {"type": "document", "source": {"type": "base64", "media_type": "x", "data": ""}}
    with pytest.raises(BadRequest, match=r"messages\[0\].content\[1\].type is 'document'"):
        turns({"type": "text", "text": "a"}, block)
    with pytest.raises(BadRequest, match=r"messages\[0\].content\[0\].content\[0\].type is 'document'"):
        turns(result([block]))


PIXEL = {"type": "base64", "media_type": "image/png", "data": base64.b64encode(b"pixels").decode()}
IMAGE = {"type": "image", "source": PIXEL}


def seen(message):
    return [part if isinstance(part, str) else part.data.tobytes() for part in message.parts]


def test_images_keep_their_places_among_texts_and_in_results():
    texts = [{"type": "text", "text": text} for text in "abc"]
    answer = result([texts[0], IMAGE])
    given = asked(
        {"role": "user", "content": [*texts[:2], IMAGE, texts[2]]}, {"role": "user", "content": [answer]}
    )
    first, second = given.conversation().messages
    assert seen(first) == ["ab", b"pixels", "c"] and first.content == "ab\nc"
    assert (second.role, seen(second)) == ("tool", ["a", b"pixels"])
    assert given.fields_without_effect() == []


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (None, "source.type is None; expected base64 or url"),
        ({"type": "file", "file_id": "f"}, "source.type is 'file'; expected base64 or url"),
        ({"type": "base64", "data": ""}, "source.data has no bytes"),
        ({"type": "base64", "data": 3}, "source.data is a int"),
        ({"type": "base64", "data": "a-b"}, "source.data is no base64"),
        ({"type": "url", "url": "https://example.com/a.png"}, "source.url is .* expected a data: URL"),
    ],
)
def test_images_that_cannot_be_taken_are_refused_with_their_place(source, message):
    with pytest.raises(BadRequest, match=rf"messages\[0\].content\[0\].{message}"):
        turns({"type": "image", "source": source})
    with pytest.raises(BadRequest, match=r"system\[0\].type is 'image'"):
        asked({"role": "user", "content": "a"}, system=[IMAGE]).conversation()


@pytest.mark.parametrize("content", [None, "", []], ids=str)
@pytest.mark.parametrize("role", ["user", "assistant", "system"])
def test_contents_may_be_empty(role, content):
    first, _ = asked({"role": role, "content": content}, USER).conversation().messages
    assert first.content == ""


def test_tools_with_a_schema_of_ours_or_theirs_are_told_and_others_are_named():
    tools = [
        {"name": "f", "input_schema": {"type": "object"}, "cache_control": {"type": "ephemeral"}},
        {"type": "custom", "name": "g", "input_schema": {"type": "object"}},
        {"type": "bash_20250124", "name": "bash"},
        {"type": "text_editor_20250728", "name": "str_replace_based_edit_tool"},
        {"type": "web_search_20250305", "name": "web_search", "max_uses": 8},
        {"type": "computer_20250124", "name": "computer"},
    ]
    given = asked(tools=tools)
    assert given.fields_without_effect() == ["tools:web_search_20250305", "tools:computer_20250124"]
    told = [tool["function"] for tool in json.loads(given.conversation().tools)]
    assert [tool["name"] for tool in told] == ["f", "g", "bash", "str_replace_based_edit_tool"]
    assert all(tool["parameters"]["type"] == "object" for tool in told)


@pytest.mark.parametrize("shape", [MessagesRequest, CountRequest])
@pytest.mark.parametrize(("kind", "thinks"), [("disabled", False), ("adaptive", True), ("enabled", True)])
def test_whether_it_thinks_reaches_the_template(shape, kind, thinks):
    given = asked(shape=shape, thinking={"type": kind}).conversation()
    assert json.loads(given.template_kwargs)["enable_thinking"] is thinks


def test_efforts_reach_the_template():
    given = asked(output_config={"effort": "high"}).conversation()
    assert json.loads(given.template_kwargs)["reasoning_effort"] == "high"


def test_a_billing_line_in_front_of_the_system_prompt_is_left_out():
    blocks = [f"x-anthropic-billing-header: cch={number};" for number in (1, 2)]
    given = [
        asked(system=[{"type": "text", "text": block}, {"type": "text", "text": "Be brief."}])
        for block in blocks
    ]
    first, second = (chat.conversation().messages for chat in given)
    assert first == second and first[0].content == "Be brief."
