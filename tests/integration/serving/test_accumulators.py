"""The stream accumulators of the official SDKs make of our events what an answer is as a whole.

`sequences.json` has the events that each accumulator tells of, by what the model says; what is repeated is written
once. With PAGEANT_RECORD it is written anew.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import anthropic
import openai
import pytest

from pageant.actors.frontend.outputs import RequestFailed
from pageant.actors.http.answers import PromptAnswers

HERE = Path(__file__).parent
SEQUENCES = HERE / "sequences.json"
NODE = HERE / "node"

CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
NOTHING = {"type": "object", "properties": {}, "additionalProperties": False}
FLAT = [
    {"type": "function", "name": "weather", "parameters": CITY},
    {"type": "function", "name": "now", "parameters": NOTHING},
]
NESTED = [{"type": "function", "function": {key: one[key] for key in ("name", "parameters")}} for one in FLAT]
CLAUDES = [{"name": one["name"], "input_schema": one["parameters"]} for one in FLAT]
ARGUMENTS = {"city": "Bonn", "days": 3}
WEATHER = f'<tool_call>\n{{"name": "weather", "arguments": {json.dumps(ARGUMENTS)}}}\n</tool_call>'
NOW = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
THOUGHTS = "<think>\nHm, 2 + 2.\n</think>\n\n"

# What the model says: its thoughts, its text, and its calls.
SAYS = {
    "text": ("It is 4.", ("", "It is 4.", [])),
    "reasoning": (f"{THOUGHTS}It is 4.", ("Hm, 2 + 2.", "It is 4.", [])),
    "one call": (WEATHER, ("", "", [("weather", ARGUMENTS)])),
    "a call after thoughts and a text": (
        f"{THOUGHTS}One moment.\n{WEATHER}",
        ("Hm, 2 + 2.", "One moment.", [("weather", ARGUMENTS)]),
    ),
    "parallel calls": (f"{WEATHER}\n{NOW}", ("", "", [("weather", ARGUMENTS), ("now", {})])),
    "a refusal": ("I cannot help with that.", ("", "I cannot help with that.", [])),
}
MODEL = {"model": "demo", "temperature": 0}


def told(text):
    return f"SAY({text})SAY"


@pytest.fixture(scope="module")
def client(parrot):
    return parrot("hermes")


@pytest.fixture(scope="module")
def claude(client):
    with anthropic.Anthropic(
        base_url=str(client.base_url).removesuffix("/v1/"), api_key="none", max_retries=0
    ) as claude:
        yield claude


def chat(client, text):
    """The events of a chat, what its accumulator makes of them, and the answer as a whole."""
    asked = {
        "messages": [{"role": "user", "content": told(text)}],
        "tools": NESTED,
        "max_tokens": 200,
        **MODEL,
    }
    with client.chat.completions.stream(**asked) as stream:
        events = [event.type for event in stream]
        final = stream.get_final_completion()
    return events, final, client.chat.completions.create(**asked)


def response(client, text):
    """Accumulate a response."""
    asked = {"input": told(text), "tools": FLAT, "max_output_tokens": 200, **MODEL}
    with client.responses.stream(**asked) as stream:
        events = [event.type for event in stream]
        final = stream.get_final_response()
    return events, final, client.responses.create(**asked)


def message(claude, text):
    """Accumulate a message."""
    asked = {"messages": [{"role": "user", "content": told(text)}], "tools": CLAUDES, "max_tokens": 200}
    asked |= {"model": "demo", "extra_body": {"temperature": 0}}
    with claude.messages.stream(**asked) as stream:
        events = [event.type for event in stream]
        final = stream.get_final_message()
    return events, final, claude.messages.create(**asked)


def said_in_chat(completion):
    (choice,) = completion.choices
    found = choice.message
    calls = [(call.function.name, json.loads(call.function.arguments)) for call in found.tool_calls or ()]
    assert choice.finish_reason == ("tool_calls" if calls else "stop") and found.refusal is None
    return getattr(found, "reasoning_content", None) or "", found.content or "", calls


def said_in_response(found):
    assert found.status == "completed" and found.error is None
    thoughts = [part.text for item in found.output if item.type == "reasoning" for part in item.content]
    calls = [(item.name, json.loads(item.arguments)) for item in found.output if item.type == "function_call"]
    return "".join(thoughts), found.output_text, calls


def said_in_message(found):
    texts = {
        kind: "".join(getattr(block, kind) for block in found.content if block.type == kind)
        for kind in ("thinking", "text")
    }
    calls = [(block.name, block.input) for block in found.content if block.type == "tool_use"]
    assert found.stop_reason == ("tool_use" if calls else "end_turn")
    return texts["thinking"], texts["text"], calls


APIS = {
    "chat": (chat, said_in_chat),
    "responses": (response, said_in_response),
    "messages": (message, said_in_message),
}


def once(kinds):
    """Leave out what repeats the event, or the two or three events, before it: their number is a matter of time."""
    found = []
    for kind in kinds:
        found.append(kind)
        for length in (1, 2, 3):
            if found[-length:] == found[-2 * length : -length]:
                del found[-length:]
    return found


def check(api, says, kinds):
    """Compares a sequence with the one that is on record."""
    recorded = json.loads(SEQUENCES.read_text())
    if os.environ.get("PAGEANT_RECORD"):
        recorded.setdefault(api, {})[says] = once(kinds)
        SEQUENCES.write_text(json.dumps(recorded, indent=1) + "\n")
    assert once(kinds) == recorded[api][says]


@pytest.mark.parametrize("says", SAYS)
@pytest.mark.parametrize("api", APIS)
def test_what_is_accumulated_is_what_is_said_as_a_whole(client, claude, api, says):
    ask, said = APIS[api]
    text, right = SAYS[says]
    kinds, final, whole = ask(claude if api == "messages" else client, text)
    check(f"python {api}", says, kinds)
    assert said(final) == said(whole) == right


@pytest.fixture
def breaks(monkeypatch):
    """Requests fail after their third piece."""
    output = PromptAnswers.output
    seen = {}

    def failing(self, arrived):
        seen[self] = seen.get(self, 0) + 1
        if seen[self] == 4:
            self.failed(RequestFailed("an actor died of it"))
        elif seen[self] < 4:
            output(self, arrived)

    monkeypatch.setattr(PromptAnswers, "output", failing)


LONG = "One, two, three, four, five, six, seven, eight, nine, ten."


def events_until_it_fails(stream, kinds):
    for event in stream:
        kinds.append(event.type)


@pytest.mark.usefixtures("breaks")
def test_an_error_in_the_midst_of_a_stream_reaches_each_client_in_its_own_way(client, claude):
    kinds = []
    asked = {"messages": [{"role": "user", "content": told(LONG)}]}
    with client.chat.completions.stream(**asked, **MODEL) as stream, pytest.raises(openai.APIError) as raised:
        events_until_it_fails(stream, kinds)
    assert "failed while it served" in str(raised.value) and "died" not in str(raised.value)
    check("python chat", "an error in mid-stream", kinds)
    kinds = []
    with client.responses.stream(input=told(LONG), **MODEL) as stream:
        for event in stream:
            kinds.append(event.type)
    assert event.response.status == "failed" and event.response.error.code == "server_error"
    check("python responses", "an error in mid-stream", kinds)
    kinds = []
    with (
        claude.messages.stream(model="demo", max_tokens=200, **asked) as stream,
        pytest.raises(anthropic.APIStatusError) as refused,
    ):
        events_until_it_fails(stream, kinds)
    assert refused.value.body["error"]["type"] == "api_error"
    check("python messages", "an error in mid-stream", kinds)


# Node's.


def run_node(client, says, **more):
    """Return what Node's accumulators make of what the model says. Their packages are installed by hand: see node/."""
    if shutil.which("node") is None or not (NODE / "node_modules").is_dir():
        pytest.skip("node's packages are not installed: npm ci --prefix tests/integration/serving/node")
    tools = {"chat": NESTED, "responses": FLAT, "messages": CLAUDES}
    asked = {"url": str(client.base_url).removesuffix("/v1/"), "tools": tools, **more}
    asked["prompts"] = {name: told(text) for name, text in says.items()}
    command = ["node", str(NODE / "accumulate.mjs")]
    done = subprocess.run(command, input=json.dumps(asked), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def in_node(client):
    return run_node(client, {says: text for says, (text, _) in SAYS.items()})


@pytest.mark.parametrize("says", SAYS)
@pytest.mark.parametrize("api", APIS)
def test_node_accumulates_the_same(in_node, api, says):
    found = in_node[api][says]
    check(f"node {api}", says, found["kinds"])
    thoughts, text, calls = SAYS[says][1]
    assert (found["text"], found["calls"]) == (text, [list(call) for call in calls])
    assert found["thoughts"] == thoughts


@pytest.mark.usefixtures("breaks")
def test_an_error_in_the_midst_of_a_stream_reaches_node_in_its_own_way(client):
    found = run_node(client, {"an error in mid-stream": LONG}, fails=True)
    types = {"chat": "server_error", "responses": "server_error", "messages": "api_error"}
    for api, right in types.items():
        outcome = found[api]["an error in mid-stream"]
        check(f"node {api}", "an error in mid-stream", outcome["kinds"])
        error = outcome["error"]
        assert "failed while it served" in error["message"] and "died" not in error["message"], error
        assert error["type"] == right, error
