"""Items and tools of `/v1/responses`, whatever an agent sends."""

from __future__ import annotations

import base64
import json

import pytest

from pageant.actors.http.openai.chat_requests import as_chat
from pageant.actors.http.openai.response_requests import NAMES, ResponseRequest
from pageant.actors.http.reading import read
from pageant.protocol.errors import BadRequest

USER = {"role": "user", "content": "hi"}
FUNCTION = {"type": "function", "name": "ls", "parameters": {"type": "object"}}


def asked(items=(USER,), **fields):
    return read(json.dumps({"input": list(items), **fields}).encode(), ResponseRequest)[0]


def messages(*items):
    return as_chat(asked(items).chat_fields([]), NAMES).conversation().messages


def shape(message):
    calls = [(call.id, call.name, call.arguments) for call in message.tool_calls]
    return message.role, message.content, message.reasoning_content, calls


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        ({"type": "function_call", "call_id": "1", "name": "f", "arguments": '{"a": '}, ("1", "f", '{"a": ')),
        ({"type": "function_call", "call_id": "1", "name": "f", "arguments": None}, ("1", "f", "{}")),
        (
            {"type": "function_call", "call_id": "1", "name": "f", "namespace": "mcp__x", "arguments": "{}"},
            ("1", "mcp__x__f", "{}"),
        ),
        (
            {"type": "custom_tool_call", "call_id": "1", "name": "p", "input": "x"},
            ("1", "p", '{"input":"x"}'),
        ),
        (
            {
                "type": "local_shell_call",
                "call_id": "1",
                "action": {"type": "exec", "command": ["ls"], "env": None},
            },
            ("1", "local_shell", '{"command":["ls"]}'),
        ),
        (
            {"type": "shell_call", "call_id": "1", "action": {"commands": ["ls"], "timeout_ms": None}},
            ("1", "shell", '{"commands":["ls"]}'),
        ),
        (
            {"type": "apply_patch_call", "call_id": "1", "operation": {"type": "delete_file", "path": "a"}},
            ("1", "apply_patch", '{"type":"delete_file","path":"a"}'),
        ),
        (
            {"type": "tool_search_call", "call_id": "1", "name": "s", "arguments": {"q": 1}},
            ("1", "s", '{"q":1}'),
        ),
    ],
)
def test_calls_of_any_kind_are_calls(item, expected):
    _, called = messages(USER, item)
    assert shape(called) == ("assistant", None, None, [expected])


@pytest.mark.parametrize("kind", ["function_call", "custom_tool_call", "local_shell_call", "shell_call", "x"])
@pytest.mark.parametrize(
    ("output", "text"),
    [
        ("a", "a"),
        ([{"type": "input_text", "text": "a"}, {"type": "output_text", "text": "b"}], "ab"),
        ({"stdout": "a"}, '{"stdout":"a"}'),
        ([{"stdout": "a"}], '{"stdout":"a"}'),
        (None, ""),
    ],
)
def test_what_came_of_a_call_is_a_tools_turn(kind, output, text):
    _, result = messages(USER, {"type": f"{kind}_output", "call_id": "1", "output": output})
    assert (result.role, result.tool_call_id, result.content) == ("tool", "1", text)


def test_a_call_may_have_its_result_within():
    call = {"type": "mcp_call", "id": "1", "server_label": "s", "name": "f", "arguments": "{}", "output": "a"}
    _, called, result = messages(USER, call)
    assert shape(called)[3] == [("1", "f", "{}")]
    assert (result.role, result.tool_call_id, result.content) == ("tool", "1", "a")


PIXEL = "data:image/png;base64," + base64.b64encode(b"pixels").decode()
IMAGE = {"type": "input_image", "image_url": PIXEL, "detail": "auto"}


def seen(message):
    return [part if isinstance(part, str) else part.data.tobytes() for part in message.parts]


def test_images_keep_their_places_in_messages_and_in_results():
    texts = [{"type": "input_text", "text": text} for text in "abc"]
    output = {"type": "function_call_output", "call_id": "1", "output": [texts[0], IMAGE]}
    first, result = messages({"role": "user", "content": [*texts[:2], IMAGE, texts[2]]}, output)
    assert seen(first) == ["ab", b"pixels", "c"] and first.content == "ab\nc"
    assert (result.role, seen(result)) == ("tool", ["a", b"pixels"])
    items = [{"role": "assistant", "content": one} for one in ([texts[0]], [IMAGE], "b")]
    (merged,) = messages(*items)
    assert seen(merged) == ["a", b"pixels", "b"]


def test_parts_that_cannot_be_taken_are_refused_with_their_place():
    parts = [{"type": "input_text", "text": "a"}, IMAGE | {"image_url": "https://example.com/a.png"}]
    with pytest.raises(BadRequest, match=r"input\[1\].output\[1\].image_url is .* expected a data: URL"):
        messages(USER, {"type": "function_call_output", "call_id": "1", "output": parts})
    with pytest.raises(BadRequest, match=r"input\[0\].content\[0\].file_id is given; expected image_url"):
        messages({"role": "user", "content": [{"type": "input_image", "file_id": "f"}]})
    with pytest.raises(BadRequest, match=r"input\[0\].content\[0\].type is 'input_file'"):
        messages({"role": "user", "content": [{"type": "input_file", "file_id": "f"}]})


@pytest.mark.parametrize(
    ("item", "thoughts"),
    [
        ({"type": "reasoning", "id": "r", "summary": [], "content": None, "encrypted_content": "gAAA"}, None),
        ({"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]}, "hm"),
        ({"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]}, "hm"),
    ],
)
def test_reasoning_is_what_is_said_of_it(item, thoughts):
    _, said = messages(USER, item, {"role": "assistant", "content": "a"})
    assert shape(said) == ("assistant", "a", thoughts, [])


@pytest.mark.parametrize(
    "kind", ["web_search_call", "image_generation_call", "compaction", "mcp_list_tools", "x"]
)
def test_items_that_say_nothing_to_a_model_are_named(kind):
    given = asked([USER, {"type": kind, "id": "1", "action": {"query": "x"}}, USER])
    assert given.fields_without_effect() == [f"input:{kind}"]
    assert len(given.turns()) == 2


@pytest.mark.parametrize(
    ("item", "lacks"),
    [
        ({"type": "function_call", "call_id": "1"}, "name"),
        ({"type": "function_call_output", "output": "a"}, "call_id"),
        ({"type": "message", "content": "a"}, "role"),
    ],
)
def test_what_an_item_needs_is_named(item, lacks):
    with pytest.raises(BadRequest, match=rf"input\[1\] has no {lacks}; expected one in a {item['type']}"):
        messages(USER, item)


def test_tools_of_which_a_model_can_be_told_are_told_and_others_are_named():
    tools = [
        FUNCTION,
        {"type": "web_search", "external_web_access": False},
        {
            "type": "custom",
            "name": "p",
            "format": {"type": "grammar", "syntax": "lark", "definition": "start: A"},
        },
        {"type": "namespace", "name": "mcp__f__", "tools": [FUNCTION, {"type": "file_search"}]},
        {"type": "local_shell"},
        {"type": "shell", "environment": {"type": "local"}},
        {"type": "shell", "environment": {"type": "container_auto"}},
        {"type": "apply_patch"},
    ]
    given = asked(tools=tools, reasoning={"effort": "low", "summary": "auto", "generate_summary": None})
    assert given.fields_without_effect() == [
        "reasoning.summary",
        "tools:web_search",
        "tools:file_search",
        "tools:shell",
        "tools:custom.format",
    ]
    conversation = as_chat(given.chat_fields([]), NAMES).conversation()
    told = [tool["function"] for tool in json.loads(conversation.tools)]
    assert [tool["name"] for tool in told] == ["ls", "p", "mcp__f__ls", "local_shell", "shell", "apply_patch"]
    assert "start: A" in told[1]["description"] and told[1]["parameters"]["required"] == ["input"]
    assert json.loads(conversation.template_kwargs)["reasoning_effort"] == "low"


@pytest.mark.parametrize(
    ("choice", "name"),
    [
        ({"type": "function", "name": "ls"}, "ls"),
        ({"type": "custom", "name": "p"}, "p"),
        ({"type": "function", "function": {"name": "ls"}}, "ls"),
    ],
)
def test_a_tool_may_be_chosen(choice, name):
    chat = as_chat(
        asked(tools=[FUNCTION, {"type": "custom", "name": "p"}], tool_choice=choice).chat_fields([]), NAMES
    )
    assert chat.callable().choice.function.name == name


def test_some_of_the_tools_may_be_allowed():
    choice = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "custom", "name": "p"}]}
    tools = [FUNCTION, {"type": "custom", "name": "p"}]
    allowed = as_chat(asked(tools=tools, tool_choice=choice).chat_fields([]), NAMES).callable()
    assert allowed.choice == "required" and [tool.function.name for tool in allowed.tools] == ["p"]


def test_a_choice_of_what_no_model_is_told_of_is_refused():
    given = asked(tools=[FUNCTION, {"type": "web_search"}], tool_choice={"type": "web_search"})
    with pytest.raises(BadRequest, match="its type is 'web_search'"):
        as_chat(given.chat_fields([]), NAMES).callable()


def test_values_of_tools_and_items_that_no_model_is_told_of_are_not_looked_at():
    tools = [
        FUNCTION,
        {"type": "computer_use_preview", "display_width": 9, "display_height": 9, "environment": "browser"},
        {"type": "made_up", "format": "wav", "environment": ["x"]},
    ]
    given = asked([USER, {"type": "made_up", "content": {"a": 1}}], tools=tools)
    assert [tool["function"]["name"] for tool in given.chat_fields([])["tools"]] == ["ls"]
    named = given.fields_without_effect()
    assert named == ["tools:computer_use_preview", "tools:made_up", "input:made_up"]
    with pytest.raises(BadRequest, match=r"Expected `str | array | null`, got `object` - at .*content"):
        messages({"role": "user", "content": {"a": 1}})
