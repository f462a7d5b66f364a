"""Structured output, tools and reasoning over HTTP, as other people's clients use them."""

from __future__ import annotations

import json
import re

import anthropic
import httpx
import jsonschema
import pydantic
import pytest
from langchain_openai import ChatOpenAI

QUESTION = [{"role": "user", "content": "Explain the with statement"}]
MODEL = {"model": "demo", "temperature": 1.0, "max_tokens": 300}
CITY = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 8},
        "days": {"type": "integer", "maximum": 9, "minimum": 0},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
NOTHING = {"type": "object", "properties": {}, "additionalProperties": False}


def tool(name, parameters=None, **more):
    return {"type": "function", "function": {"name": name, "parameters": parameters} | more}


TOOLS = [tool("weather", CITY, description="What it is like there"), tool("now", NOTHING)]


class City(pydantic.BaseModel):
    city: str = pydantic.Field(max_length=8)
    days: int = pydantic.Field(ge=0, le=9)


def test_a_response_format_is_kept_to(client):
    form = {"type": "json_schema", "json_schema": {"name": "city", "schema": CITY, "strict": True}}
    answer = client.chat.completions.create(messages=QUESTION, n=3, response_format=form, **MODEL)
    for choice in answer.choices:
        assert choice.finish_reason == "stop"
        jsonschema.validate(json.loads(choice.message.content), CITY)
    stream = client.chat.completions.create(messages=QUESTION, stream=True, response_format=form, **MODEL)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    jsonschema.validate(json.loads(text), CITY)
    answer = client.chat.completions.create(
        messages=QUESTION, response_format={"type": "json_object"}, seed=1, **MODEL | {"max_tokens": 500}
    )
    if answer.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(answer.choices[0].message.content), dict)
    parsed = client.chat.completions.parse(messages=QUESTION, response_format=City, **MODEL)
    assert isinstance(parsed.choices[0].message.parsed, City)


@pytest.mark.parametrize(
    ("asked", "pattern"),
    [
        ({"regex": r"[0-9]{3}-x"}, r"[0-9]{3}-x"),
        ({"choice": ["left", "right"]}, "left|right"),
        ({"json": {"type": "integer", "minimum": 5, "maximum": 7}}, "[567]"),
        ({"grammar": 'root ::= "a" | "(" root ")"'}, r"\(*a\)*"),
        ({"json_object": True, "disable_any_whitespace": True}, r"\{.*"),
        ({"structural_tag": {"format": {"type": "const_string", "value": "just this"}}}, "just this"),
    ],
)
def test_structured_outputs_are_kept_to_in_chats_and_completions(client, asked, pattern):
    more = {"extra_body": {"structured_outputs": asked}} | MODEL
    chat = client.chat.completions.create(messages=QUESTION, **more).choices[0].message.content
    text = client.completions.create(prompt="So:", **more).choices[0].text
    assert re.fullmatch(pattern, chat, re.DOTALL) and re.fullmatch(pattern, text, re.DOTALL)


DEEP = {"type": "object"}
for _ in range(80):
    DEEP = {"type": "object", "properties": {"a": DEEP}}
COSTLY = {"allOf": [{"anyOf": [{"properties": {f"{c}{i}": {}}} for c in "abc"]} for i in range(40)]}


def schema_format(schema):
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": schema_format({"type": "what"})}, "response_format"),
        ({"response_format": schema_format(DEEP)}, "response_format"),
        ({"response_format": schema_format(COSTLY)}, "response_format"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        ({"response_format": {"type": "poem"}}, "response_format"),
        ({"structured_outputs": {"regex": "(a"}}, "structured_outputs"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs"),
        (
            {"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}},
            "structured_outputs",
        ),
        ({"tools": [tool("f", {"type": "what"})], "tool_choice": "required"}, "tools"),
        ({"tools": [tool("f g")]}, "tools"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "other"}}}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": "perhaps"}, "tool_choice"),
    ],
)
def test_what_makes_no_sense_is_a_400_that_names_its_field(http, fields, param):
    for stream in (False, True):
        body = {"model": "demo", "messages": QUESTION, "stream": stream} | fields
        answer = http.post("/v1/chat/completions", json=body)
        assert answer.status_code == 400, answer.text
        error = answer.json()["error"]
        assert error["param"] == param and "Traceback" not in error["message"]


# Calls that have to be made.


def checked(call):
    assert call.type == "function" and call.id
    parameters = {"weather": CITY, "now": NOTHING}[call.function.name]
    jsonschema.validate(json.loads(call.function.arguments), parameters)
    return call.function.name


def test_required_and_named_tools_are_called_with_what_they_take(client):
    for seed in range(4):
        answer = client.chat.completions.create(
            messages=QUESTION, tools=TOOLS, tool_choice="required", seed=seed, **MODEL
        )
        (choice,) = answer.choices
        if choice.finish_reason != "length":
            assert choice.finish_reason == "tool_calls" and choice.message.content is None
            assert {checked(call) for call in choice.message.tool_calls} <= {"weather", "now"}
    named = {"type": "function", "function": {"name": "weather"}}
    answer = client.chat.completions.create(messages=QUESTION, tools=TOOLS, tool_choice=named, n=2, **MODEL)
    for choice in answer.choices:
        assert [checked(call) for call in choice.message.tool_calls] == ["weather"]
    answer = client.chat.completions.create(
        messages=QUESTION, tools=TOOLS, tool_choice="required", parallel_tool_calls=False, **MODEL
    )
    assert len(answer.choices[0].message.tool_calls) == 1


@pytest.mark.parametrize("most", [1, 3, 6, 9])
def test_a_call_that_has_to_be_made_leaves_no_markup_when_it_is_cut_off(client, http, most):
    asked = {"messages": QUESTION, "tools": TOOLS, "tool_choice": "required"} | MODEL | {"max_tokens": most}
    choice = client.chat.completions.create(**asked).choices[0]
    assert choice.finish_reason == "length" and not choice.message.content
    chunks = list(client.chat.completions.create(stream=True, **asked))
    assert not any(chunk.choices[0].delta.content for chunk in chunks)
    flat = [{"type": "function", **one["function"]} for one in TOOLS]
    body = {"input": "Hi", "tools": flat, "tool_choice": "required", "max_output_tokens": most}
    response = client.responses.create(model="demo", **body)
    assert response.status == "incomplete" and not response.output_text
    message = {
        "tools": [{"name": "now", "input_schema": NOTHING}],
        "tool_choice": {"type": "any"},
        "max_tokens": most,
    }
    told = http.post("/v1/messages", json={"messages": QUESTION} | message).json()
    assert told["stop_reason"] == "max_tokens" and not any(block.get("text") for block in told["content"])


def test_a_message_without_calls_has_no_word_of_them(http):
    body = {"messages": QUESTION, "max_tokens": 2}
    assert "tool_calls" not in http.post("/v1/chat/completions", json=body).json()["choices"][0]["message"]


def test_calls_are_streamed(client):
    named = {"type": "function", "function": {"name": "weather"}}
    with client.chat.completions.stream(messages=QUESTION, tools=TOOLS, tool_choice=named, **MODEL) as stream:
        final = stream.get_final_completion()
    assert [checked(call) for call in final.choices[0].message.tool_calls] == ["weather"]
    assert final.choices[0].finish_reason == "tool_calls"


def test_responses_messages_and_langchain_call_tools_too(client, url):
    flat = [{"type": "function", **one["function"]} for one in TOOLS]
    answer = client.responses.create(
        model="demo", input="Hi", tools=flat, tool_choice={"type": "function", "name": "weather"}
    )
    (call,) = answer.output
    assert call.type == "function_call" and call.name == "weather"
    jsonschema.validate(json.loads(call.arguments), CITY)
    parsed = client.responses.parse(model="demo", input="Hi", text_format=City)
    assert isinstance(parsed.output_parsed, City)
    with anthropic.Anthropic(base_url=url, api_key="none", max_retries=0) as claude:
        tools = [{"name": "weather", "input_schema": CITY}]
        message = claude.messages.create(
            model="demo",
            max_tokens=300,
            messages=QUESTION,
            tools=tools,
            tool_choice={"type": "tool", "name": "weather"},
        )
    (block,) = message.content
    assert message.stop_reason == "tool_use" and block.type == "tool_use"
    jsonschema.validate(block.input, CITY)
    langchain = ChatOpenAI(model="demo", base_url=f"{url}/v1", api_key="none", max_tokens=300)
    assert isinstance(langchain.with_structured_output(City).invoke("Hi"), City)
    (call,) = langchain.bind_tools(TOOLS, tool_choice="weather").invoke("Hi").tool_calls
    jsonschema.validate(call["args"], CITY)


# What a model says by itself.


def told(text):
    return [{"role": "user", "content": f"SAY({text})SAY"}]


ARGUMENTS = '{"city": "Bonn", "days": 3}'
SPOKEN = {
    "hermes": f'<think>\nHm.\n</think>\n\nOne moment.\n<tool_call>\n{{"name": "weather", "arguments": {ARGUMENTS}}}\n'
    '</tool_call>\n<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>',
    "llama3_json": f'{{"name": "weather", "parameters": {ARGUMENTS}}}; {{"name": "now", "parameters": {{}}}}',
    "pythonic": '[weather(city="Bonn", days=3), now()]',
    "mistral": f'One moment.[TOOL_CALLS] [{{"name": "weather", "arguments": {ARGUMENTS}}}, '
    '{"name": "now", "arguments": {}}]',
    "openai": "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary<|message|>"
    "One moment.<|end|><|start|>assistant<|channel|>commentary to=functions.weather <|constrain|>json<|message|>"
    f"{ARGUMENTS}<|call|><|start|>assistant<|channel|>commentary to=functions.now<|message|>{{}}<|call|>",
}


@pytest.mark.parametrize("form", SPOKEN)
def test_calls_are_read_from_what_a_model_says(parrot, form):
    client, asked = parrot(form), {"messages": told(SPOKEN[form]), "tools": TOOLS} | MODEL
    whole = client.chat.completions.create(**asked).choices[0]
    with client.chat.completions.stream(**asked) as stream:
        streamed = stream.get_final_completion().choices[0]
    for choice in (whole, streamed):
        assert choice.finish_reason == "tool_calls"
        assert [checked(call) for call in choice.message.tool_calls] == ["weather", "now"]
        assert json.loads(choice.message.tool_calls[0].function.arguments) == json.loads(ARGUMENTS)
        assert (choice.message.content or None) == ("One moment." if "One" in SPOKEN[form] else None)
    without = client.chat.completions.create(**asked | {"tool_choice": "none"}).choices[0]
    said = without.message.reasoning_content if form == "openai" else without.message.content
    assert not without.message.tool_calls and ("Bonn" if form == "openai" else "weather") in said


def test_thoughts_are_split_off_everywhere(parrot):
    client = parrot("hermes")
    text = "<think>\nHm, 2 + 2.\n</think>\n\nIt is 4."
    message = client.chat.completions.create(messages=told(text), **MODEL).choices[0].message
    assert (message.reasoning_content, message.content) == ("Hm, 2 + 2.", "It is 4.")
    stream = list(client.chat.completions.create(messages=told(text), stream=True, **MODEL))
    deltas = [chunk.choices[0].delta for chunk in stream]
    assert "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas) == "Hm, 2 + 2."
    assert "".join(delta.content or "" for delta in deltas) == "It is 4."
    response = client.responses.create(model="demo", input=told(text)[0]["content"])
    assert [item.type for item in response.output] == ["reasoning", "message"]
    assert response.output_text == "It is 4."
    root = str(client.base_url).removesuffix("/v1/")
    body = {"model": "demo", "max_tokens": 300, "messages": told(text)}
    blocks = httpx.post(f"{root}/v1/messages", json=body, timeout=60).json()["content"]
    assert [(one["type"], one.get("thinking", one.get("text"))) for one in blocks] == [
        ("thinking", "Hm, 2 + 2."),
        ("text", "It is 4."),
    ]


def test_a_strict_tool_gets_what_it_takes_also_when_a_model_would_say_otherwise(parrot):
    client = parrot("hermes")
    wrong = 'Well: <tool_call>\n{"name": "weather", "arguments": {"town": "Bonn"}}\n</tool_call>'
    strict = [tool("weather", CITY, strict=True)]
    asked = {"messages": told(wrong)} | MODEL
    (call,) = client.chat.completions.create(tools=TOOLS, **asked).choices[0].message.tool_calls
    assert json.loads(call.function.arguments) == {"town": "Bonn"}
    choice = client.chat.completions.create(tools=strict, **asked).choices[0]
    assert choice.message.content.startswith("Well:")
    if choice.finish_reason == "tool_calls":
        assert [checked(call) for call in choice.message.tool_calls] == ["weather"]
    else:
        assert choice.finish_reason == "length"


def test_an_answer_in_a_form_may_come_after_thoughts(parrot):
    client = parrot("hermes")
    asked = {
        "messages": told("<think>Left or right?</think>right"),
        "extra_body": {"structured_outputs": {"choice": ["left"]}},
    }
    message = client.chat.completions.create(**asked, **MODEL).choices[0].message
    assert (message.reasoning_content, message.content) == ("Left or right?", "left")
