"""Requests of agents, to a model that does what its prompt says: tools, histories, reasoning, templates."""

from __future__ import annotations

import json
import re

import httpx
import openai
import pytest

from pageant.actors.client.cast import HTTP
from pageant.actors.client.session import Session
from pageant.actors.client.settings import topology_of
from pageant.scripts.puppet import make_puppet

PATCH = '*** Begin "x"\n+u'
CALL_PATCH = f"CALL:patch WITH:{json.dumps({'input': PATCH})}:END"
CUSTOM = {"type": "custom", "name": "patch", "description": "Edits files."}
CHAT_CUSTOM = {"type": "custom", "custom": {"name": "patch", "description": "Edits files."}}


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    folder = make_puppet(tmp_path_factory.mktemp("model") / "puppet", max_model_len=4096)
    http = {"options": {"port": 0, "trust_request_chat_template": True}}
    settings = {"placement": "one", "threads": 1, "kv_cache_memory": "64MiB", "actors": {HTTP: http}}
    session = Session(topology_of(folder, None, settings))
    session.start()
    yield session.served_at().split()[-1]
    session.stop()


@pytest.fixture(scope="module")
def client(base):
    with openai.OpenAI(base_url=f"{base}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def http(base):
    with httpx.Client(base_url=base, timeout=60) as http:
        yield http


def chat(client, text, **options):
    return client.chat.completions.create(
        model="puppet", messages=[{"role": "user", "content": text}], **options
    )


def test_a_custom_tools_call_is_one_in_chats(client):
    (call,) = chat(client, CALL_PATCH, tools=[CHAT_CUSTOM]).choices[0].message.tool_calls
    assert (call.type, call.custom.name, call.custom.input) == ("custom", "patch", PATCH)


@pytest.mark.parametrize(
    "choice", ["auto", "required", {"type": "custom", "custom": {"name": "patch"}}], ids=str
)
def test_a_custom_tools_call_is_streamed_in_chats(client, choice):
    stream = chat(client, CALL_PATCH, tools=[CHAT_CUSTOM], tool_choice=choice, stream=True)
    deltas = [call for chunk in stream for call in chunk.choices[0].delta.tool_calls or ()]
    assert deltas[0].type == "custom" and deltas[0].id
    texts = [call.model_dump()["custom"].get("input", "") for call in deltas]
    assert "".join(texts) == PATCH and len(texts) > len(PATCH) / 2


def with_format(syntax, definition):
    """A custom tool with a grammar, as chats have it, and as responses have it."""
    grammar = {"syntax": syntax, "definition": definition}
    nested = {"name": "patch", "format": {"type": "grammar", "grammar": grammar}}
    return {"type": "custom", "custom": nested}, CUSTOM | {"format": {"type": "grammar", **grammar}}


def called_with(text):
    return f"CALL:patch WITH:{json.dumps({'input': text})}:END"


@pytest.mark.parametrize("choice", ["auto", "required"])
def test_a_custom_tools_text_is_held_to_its_regular_expression(client, choice):
    definition = r'a\n"[0-9]{2,4}\\'
    in_chat, in_response = with_format("regex", definition)
    right, wrong = 'a\n"123\\', 'a\n"12x\\'
    for said in (right, wrong):
        options = {"tools": [in_chat], "tool_choice": choice, "temperature": 0}
        (call,) = chat(client, called_with(said), **options).choices[0].message.tool_calls
        assert re.fullmatch(definition, call.custom.input), call.custom.input
        assert (call.custom.input == said) == (said == right)
        response = client.responses.create(
            model="puppet",
            input=called_with(said),
            tools=[in_response],
            tool_choice=choice,
            temperature=0,
        )
        (item,) = response.output
        assert item.type == "custom_tool_call" and item.input == call.custom.input


LINES = """
start: "*** Begin" LF (add | context)+ "*** End"
add: "+" /[^\\n]*/ LF
context: "@@ " /(.+)/ LF
%import common.LF
"""


@pytest.mark.parametrize("choice", ["auto", "required"])
def test_a_custom_tools_text_is_held_to_its_lark_grammar(client, choice):
    in_chat, in_response = with_format("lark", LINES)
    right = '*** Begin\n@@ def f("a"):\n+\treturn "\\n"\n+\n*** End'
    for said in (right, "*** Begin\nno\n*** End", right.replace("\n", " "), right.replace("*** End", "")):
        options = {"tools": [in_chat], "tool_choice": choice, "temperature": 0, "max_tokens": 400}
        (choices,) = chat(client, called_with(said), **options).choices
        if choices.finish_reason == "length":
            continue  # it is held, and never comes to its end
        (call,) = choices.message.tool_calls
        assert re.fullmatch(r"\*\*\* Begin\n((\+.*|@@ .+)\n)+\*\*\* End", call.custom.input), (
            call.custom.input
        )
        assert (call.custom.input == said) == (said == right)
    response = client.responses.create(
        model="puppet", input=called_with(right), tools=[in_response], tool_choice=choice, temperature=0
    )
    assert [(item.type, item.input) for item in response.output] == [("custom_tool_call", right)]


def test_a_grammar_that_a_custom_tools_text_is_not_held_to_is_named(http):
    in_chat, in_response = with_format("lark", "start: /(?i)a/")
    chat_body = {"messages": [{"role": "user", "content": CALL_PATCH}], "tools": [in_chat]}
    namespace = {"type": "namespace", "name": "files", "description": "", "tools": [in_response]}
    for path, body in (
        ("/v1/chat/completions", chat_body),
        ("/v1/responses", {"input": CALL_PATCH, "tools": [in_response]}),
        ("/v1/responses", {"input": CALL_PATCH, "tools": [namespace]}),
    ):
        answer = http.post(path, json={"model": "puppet", **body})
        assert answer.status_code == 200, answer.text
        assert answer.headers["x-pageant-fields-without-effect"] == "tools:custom.format"
    for syntax, right, wrong in (("regex", "[a-z]+", "("), ("lark", "start: /[a-z]+/", "start: other")):
        held = {**chat_body, "tools": [with_format(syntax, right)[0]]}
        answer = http.post("/v1/chat/completions", json={"model": "puppet", **held})
        assert "x-pageant-fields-without-effect" not in answer.headers
        refused = {**chat_body, "tools": [with_format(syntax, wrong)[0]]}
        answer = http.post("/v1/chat/completions", json={"model": "puppet", **refused})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "tools"), answer.text


def test_a_custom_tools_call_is_an_item_of_a_response_and_its_result_comes_back(client):
    first = client.responses.create(model="puppet", input=CALL_PATCH, tools=[CUSTOM])
    (call,) = first.output
    assert (call.type, call.name, call.input) == ("custom_tool_call", "patch", PATCH)
    result = {"type": "custom_tool_call_output", "call_id": call.call_id, "output": "Done."}
    after = client.responses.create(
        model="puppet", input=[result], previous_response_id=first.id, tools=[CUSTOM]
    )
    assert after.output_text == "The tool said: Done."
    history = [{"role": "user", "content": CALL_PATCH}, call.model_dump(), result]
    assert (
        client.responses.create(model="puppet", input=history, tools=[CUSTOM]).output_text
        == after.output_text
    )


def test_a_custom_tools_call_has_events_of_its_own(client):
    with client.responses.stream(model="puppet", input=CALL_PATCH, tools=[CUSTOM]) as stream:
        events = list(stream)
    deltas = [event.delta for event in events if event.type == "response.custom_tool_call_input.delta"]
    (done,) = [event for event in events if event.type == "response.custom_tool_call_input.done"]
    assert "".join(deltas) == done.input == PATCH
    (added,) = [event for event in events if event.type == "response.output_item.added"]
    assert (added.item.type, added.item.input) == ("custom_tool_call", "")
    assert events[-1].response.output[0].input == PATCH


def test_calls_of_other_kinds_of_tools_are_told_in_their_form(http):
    tools = [
        {"type": "local_shell"},
        {"type": "shell"},
        {"type": "apply_patch"},
        {"type": "namespace", "name": "mcp__files", "tools": [{"type": "function", "name": "ls"}]},
        {"type": "web_search"},
    ]

    def called(text):
        answer = http.post("/v1/responses", json={"input": text, "tools": tools})
        assert answer.headers["x-pageant-fields-without-effect"] == "tools:web_search"
        return answer.json()["output"][0]

    shell = called('CALL:local_shell WITH:{"command": ["ls"]}:END')
    assert (shell["type"], shell["action"]) == (
        "local_shell_call",
        {"type": "exec", "command": ["ls"], "env": {}},
    )
    shell = called('CALL:shell WITH:{"commands": "ls"}:END')
    assert (shell["type"], shell["action"]) == ("shell_call", {"commands": ["ls"]})
    patch = called('CALL:apply_patch WITH:{"type": "delete_file", "path": "a"}:END')
    assert (patch["type"], patch["operation"]) == ("apply_patch_call", {"type": "delete_file", "path": "a"})
    call = called('CALL:mcp__files__ls WITH:{"path": "."}:END')
    assert (call["type"], call["namespace"], call["name"]) == ("function_call", "mcp__files", "ls")


def test_items_that_are_referred_to_are_those_that_were_put_out(client, http):
    said = client.responses.create(model="puppet", input="THINK:hm:END SAY:Yes.:END")
    references = [{"type": "item_reference", "id": item.id} for item in said.output]
    answers = [
        client.responses.create(
            model="puppet", input=[{"role": "user", "content": "a"}, *items, {"role": "user", "content": "b"}]
        )
        for items in (references, [item.model_dump() for item in said.output])
    ]
    assert answers[0].usage.input_tokens == answers[1].usage.input_tokens
    unknown = http.post("/v1/responses", json={"input": [{"id": "msg_none-0"}]})
    assert (
        unknown.status_code == 404 and "input[0] refers to 'msg_none-0'" in unknown.json()["error"]["message"]
    )


THOUGHTS = "THINK:one two:END SAY:Yes.:END"
NUM_THOUGHT = len("\none two\n")  # tokens are bytes


@pytest.mark.parametrize("stream", [False, True])
def test_thoughts_have_two_names_and_are_counted(client, stream):
    if stream:
        chunks = list(chat(client, THOUGHTS, stream=True, stream_options={"include_usage": True}))
        deltas = [chunk.choices[0].delta.model_dump() for chunk in chunks if chunk.choices]
        told = {
            name: "".join(delta.get(name) or "" for delta in deltas)
            for name in ("reasoning", "reasoning_content")
        }
        usage = chunks[-1].usage
    else:
        answer = chat(client, THOUGHTS)
        told, usage = answer.choices[0].message.model_dump(), answer.usage
    assert (told["reasoning"], told["reasoning_content"]) == ("one two", "one two")
    assert usage.completion_tokens_details.reasoning_tokens == NUM_THOUGHT


def test_thoughts_are_counted_in_responses(client):
    usage = client.responses.create(model="puppet", input=THOUGHTS).usage
    assert usage.output_tokens_details.reasoning_tokens == NUM_THOUGHT


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"reasoning_effort": "none"}),
        ("/v1/responses", {"reasoning": {"effort": "none"}}),
        ("/v1/messages", {"thinking": {"type": "disabled"}, "max_tokens": 99}),
    ],
)
def test_whether_a_model_thinks_is_said_in_each_api(http, path, body):
    asked = (
        {"input": THOUGHTS} if "responses" in path else {"messages": [{"role": "user", "content": THOUGHTS}]}
    )
    with_thoughts = http.post(path, json={**asked, "max_tokens": 99} if "messages" in path else asked)
    without = http.post(path, json={**asked, **body})
    assert "one two" in with_thoughts.text.replace(THOUGHTS, "")
    assert without.status_code == 200 and "one two" not in without.text.replace(THOUGHTS, "")


def test_a_line_that_changes_with_every_request_does_not_cost_the_cache(http):
    def cached(number):
        line = f"x-anthropic-billing-header: cc_version=2; cch={number};"
        system = [{"type": "text", "text": text} for text in (line, "You are a CLI. " * 20)]
        body = {"max_tokens": 2, "system": system, "messages": [{"role": "user", "content": "Hi there"}]}
        usage = http.post("/v1/messages", json=body).json()["usage"]
        return usage["cache_read_input_tokens"] / (usage["input_tokens"] + usage["cache_read_input_tokens"])

    cached("fa690")
    assert cached("0b1c2") > 0.9


def test_a_requests_own_template_sees_its_documents(http):
    template = "{% for d in documents %}{{ d.title }};{% endfor %}{{ messages[0].content }}"
    body = {"messages": [{"role": "user", "content": "a"}], "chat_template": template, "max_tokens": 1}
    documents = [{"title": "x"}, {"title": "yz"}]
    answer = http.post("/v1/chat/completions", json=body | {"documents": documents}).json()
    assert answer["usage"]["prompt_tokens"] == len("x;yz;a")
    refused = http.post("/v1/chat/completions", json=body | {"chat_template": "{% if %}"})
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "chat_template"
    file = http.post("/v1/chat/completions", json=body | {"chat_template": "/etc/passwd"})
    assert file.status_code == 400 and "expected the text of a Jinja template" in file.text
    own = body | {"chat_template": "{{ messages[0].content }}!"}
    assert http.post("/tokenize", json=own).json()["count"] == 2
