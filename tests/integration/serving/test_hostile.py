"""Requests of attackers and broken clients. After each, a normal request gets the right tokens."""

from __future__ import annotations

import json
import socket
from collections import Counter

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import (
    content_type_conformance,
    not_a_server_error,
    response_schema_conformance,
)

import pageant

CHAT, TEXT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"
QUESTION = [{"role": "user", "content": "Explain the with statement"}]
SHORT = {"messages": QUESTION, "max_tokens": 4, "temperature": 0}
TEXTUAL = {"prompt": "A dictionary", "max_tokens": 2, "temperature": 0}


@pytest.fixture(scope="module")
def right(llm):
    answer = llm.chat([QUESTION], pageant.SamplingParams(temperature=0.0, max_tokens=4))[0]
    return answer.outputs[0].text


@pytest.fixture(autouse=True)
def still_right(http, right):
    yield
    assert http.post(CHAT, json=SHORT).json()["choices"][0]["message"]["content"] == right


def raw_number(body, name, text):
    """A body with a number that no JSON encoder writes."""
    return json.dumps(body | {name: "@"}).replace('"@"', text).encode()


NUMBERS = [
    "1e999",
    "-1e999",
    "NaN",
    "Infinity",
    "1" * 400,
    "-1",
    "1e-400",
    "0.5",
    "9223372036854775808",
    "true",
    '"1"',
]
FIELDS = [
    "temperature",
    "top_p",
    "max_tokens",
    "n",
    "top_k",
    "seed",
    "logprobs",
    "presence_penalty",
    "deadline",
]


@pytest.mark.parametrize("number", NUMBERS)
def test_numbers_of_every_kind(http, number):
    for name in FIELDS:
        answer = http.post(TEXT, content=raw_number(TEXTUAL, name, number))
        assert answer.status_code in (200, 400), (name, number, answer.text)
        if answer.status_code == 400:
            assert answer.json()["error"]["type"] == "invalid_request_error"


def deep(levels, opening="[", closing="]"):
    return opening * levels + closing * levels


@pytest.mark.parametrize(
    "body",
    [
        {"prompt": [-1]},
        {"prompt": [2**31]},
        {"prompt": [10**30]},
        {"prompt": [[1], "a"]},
        {"prompt": [0] * 1_000_000},
        {"prompt": [[0]] * 10_000},
        {"prompt": "x" * 3_000_000},
        {"prompt": "\u0000\uffff\U0010ffff" * 100},
        {"prompt": "a", "stop": ["x" * 100_000]},
        {"prompt": "a", "stop": [""]},
        {"prompt": "a", "stop": ["x"] * 100_000},
        {"prompt": "a", "bad_words": ["x"] * 100_000},
        {"prompt": "a", "bad_words": ["(a+)+$" * 40]},
        {"prompt": "a", "stop_token_ids": list(range(100_000))},
        {"prompt": "a", "allowed_token_ids": [1] * 1_000_000},
        {"prompt": "a", "logit_bias": {str(i): 1 for i in range(100_000)}},
        {"prompt": "a", "logit_bias": {"1e3": 1}},
        {"prompt": "a", "logit_bias": {"9" * 5000: 1}},
        {"prompt": "a", "logprobs": 2**31},
        {"prompt": "a", "n": 10**9},
        {"prompt": "a", "best_of": 10**9},
        {"prompt": "a", "vllm_xargs": {"a": "x" * 100_000}},
        {"prompt": "a", "x" * 100_000: 1},
        {"prompt": "a", **{f"field-{i}\u2028\n": i for i in range(10_000)}},
        {"prompt": "a", "request_id": "a\r\nset-cookie: x"},
    ],
    ids=lambda body: str(body)[:40],
)
def test_giant_and_crooked_values(http, body):
    answer = http.post(TEXT, content=json.dumps(body | {"max_tokens": 1}).encode())
    assert answer.status_code in (200, 400), answer.text[:300]
    assert len(answer.text) < 20_000 and "Traceback" not in answer.text


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"\xff\xfe",
        b"\x00" * 1000,
        deep(100_000).encode(),
        deep(100_000, '{"a":', "}").encode(),
        json.dumps(SHORT | {"chat_template_kwargs": {}}).replace("{}", deep(5000, '{"a":', "}")).encode(),
        json.dumps(SHORT | {"chat_template_kwargs": {}}).replace("{}", deep(300, '{"a":', "}")).encode(),
        json.dumps(SHORT | {"messages": [{"role": "user", "content": "{{ 9**9**9 }}{% raw %}"}]}).encode(),
        json.dumps(SHORT | {"messages": [{"role": "x" * 10**6, "content": ""}]}).encode(),
        json.dumps(SHORT | {"messages": [{"role": "user", "content": [{"type": "text"}]}]}).encode(),
        json.dumps(SHORT | {"messages": [{"role": "user", "content": None}] * 5000}).encode(),
        json.dumps(
            SHORT
            | {
                "messages": [
                    {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}
                ]
            }
        ).encode(),
        json.dumps(SHORT | {"chat_template": "{% for i in range(10**9) %}{% endfor %}"}).encode(),
        json.dumps(SHORT | {"chat_template_kwargs": {"tools": [1], "documents": 5, "__class__": 1}}).encode(),
    ],
    ids=lambda body: str(body[:30]) + str(len(body)),
)
@pytest.mark.parametrize("path", [CHAT, MESSAGES, RESPONSES])
def test_bodies_that_are_not_what_they_should_be(http, path, body):
    answer = http.post(path, content=body)
    assert answer.status_code in (200, 400), answer.text[:300]
    assert (
        "Traceback" not in answer.text and "/models" not in answer.text and "site-packages" not in answer.text
    )


def exchange(url, data, seconds=30):
    """Return what the server says to bytes of any kind, until it closes or falls silent."""
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=seconds) as connection:
        received = b""
        try:
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            while part := connection.recv(65_536):
                received += part
        except OSError as error:
            assert not isinstance(error, TimeoutError), "the server keeps the connection for nothing"
    return received


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/9.9\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET /" + b"a" * 200_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /ready HTTP/1.1\r\nHost: x\r\nx: " + b"a" * 1_000_000 + b"\r\n\r\n",
        b"GET /ready HTTP/1.1\r\nHost: x\r\n" + b"x: y\r\n" * 5000 + b"\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999\r\n\r\n{",
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n{",
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzzz\r\n",
    ],
    ids=lambda data: str(data[:40]),
)
def test_connections_that_speak_no_good_http_are_closed(url, data):
    answer = exchange(url, data)
    assert not answer or answer.split(b" ")[1][:1] == b"4", answer[:200]


def test_an_endless_head_is_cut_off_before_it_ends(url):
    host, port = url.removeprefix("http://").split(":")
    sent = 0
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(b"GET /ready HTTP/1.1\r\nx: ")
        with pytest.raises((ConnectionResetError, BrokenPipeError)):
            while sent < 2**26:
                connection.sendall(b"a" * 65_536)
                sent += 65_536
    assert sent < 2**26


def test_a_thousand_idle_and_half_sent_connections_hold_up_nobody(url, http, right):
    host, port = url.removeprefix("http://").split(":")
    held = [socket.create_connection((host, int(port))) for _ in range(1000)]
    try:
        for index, connection in enumerate(held):
            connection.sendall(
                (b"", b"G", b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{")[
                    index % 3
                ]
            )
        assert http.post(CHAT, json=SHORT).json()["choices"][0]["message"]["content"] == right
    finally:
        for connection in held:
            connection.close()


def test_prompts_are_measured_also_beyond_what_can_be_answered_but_not_whatever_their_length(http):
    most = http.post("/tokenize", json={"prompt": "a"}).json()["max_model_len"]
    long, longer = "1 " * most, "1 " * 4 * most
    measured = http.post("/tokenize", json={"prompt": long}).json()
    assert measured["count"] == len(measured["tokens"]) > most
    refused = http.post("/tokenize", json={"prompt": long, "return_token_strs": True}).json()["error"]
    assert refused["param"] == "return_token_strs" and f"{measured['count']} tokens" in refused["message"]
    refused = http.post("/tokenize", json={"prompt": longer}).json()["error"]
    assert refused["param"] == "prompt" and f"at most {4 * most} are told of" in refused["message"]
    turns = {"messages": [{"role": "user", "content": longer}]}
    assert http.post(f"{MESSAGES}/count_tokens", json=turns).status_code == 400


def test_a_path_of_the_server_is_told_to_nobody(http):
    for path in (
        "/v1/models/../../etc/passwd",
        "/v1/models/%2e%2e%2f",
        "/openapi.json/../x",
        "/%00",
        "/v1/responses/%ff",
    ):
        answer = http.get(path)
        assert answer.status_code in (400, 404), path
        assert answer.json()["error"]["type"] == "invalid_request_error"


def test_the_document_names_every_route_and_its_errors(http):
    document = http.get("/openapi.json").json()
    for path in (
        CHAT,
        TEXT,
        RESPONSES,
        MESSAGES,
        "/tokenize",
        "/detokenize",
        "/v1/models",
        "/health",
        "/metrics",
    ):
        assert path in document["paths"]
    fields = document["components"]["schemas"]["ChatRequest"]["properties"]
    assert {"messages", "top_k", "chat_template_kwargs", "stream_options"} <= fields.keys()


# Ranges that a schema of types does not say, so that some requests are good; and answers are short.
FEW = {"enum": [1, 2, 3]}
SHARE = {"type": "number", "minimum": 0.1, "maximum": 1}
SENSIBLE = {
    **{"model": {"enum": ["demo"]}, "n": FEW, "max_tokens": FEW, "max_output_tokens": FEW, "seed": FEW},
    **{"temperature": SHARE, "top_p": SHARE, "min_p": SHARE, "top_k": FEW, "deadline": SHARE},
    **{"presence_penalty": SHARE, "frequency_penalty": SHARE, "repetition_penalty": SHARE},
    "prompt": {"type": "string", "minLength": 1},
}
UNSAID = (
    *("max_completion_tokens", "min_tokens", "best_of", "chat_template", "suffix", "request_id", "logprobs"),
    *("stream_options", "use_beam_search", "stop", "bad_words", "stop_token_ids", "allowed_token_ids"),
    *("logit_bias", "vllm_xargs", "top_logprobs", "prompt_logprobs", "truncate_prompt_tokens", "priority"),
    *("stop_sequences", "continue_final_message", "previous_response_id", "background"),
)


def test_whatever_fits_the_document_is_answered(url):
    """schemathesis makes requests of the document, good ones and bad ones."""
    document = httpx.get(f"{url}/openapi.json").json()
    for name, shape in document["components"]["schemas"].items():
        if name.endswith("Request"):
            fields = shape["properties"]
            fields.update({key: SENSIBLE[key] for key in SENSIBLE.keys() & fields.keys()})
            shape["properties"] = {key: value for key, value in fields.items() if key not in UNSAID}
            shape["required"] = [*shape.get("required", ()), *({"model", "max_tokens"} & fields.keys())]
    schema = schemathesis.openapi.from_dict(document)
    answered = Counter()
    for found in schema.get_all_operations():
        operation = found.ok()
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):

            @settings(
                max_examples=8,
                derandomize=True,
                database=None,
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            )
            @given(case=operation.as_strategy(generation_mode=mode))
            def one(case):
                answer = case.call(base_url=url, timeout=30)
                case.validate_response(
                    answer, checks=[not_a_server_error, content_type_conformance, response_schema_conformance]
                )
                answered[answer.status_code] += 1

            if mode is GenerationMode.POSITIVE or operation.body:
                one()
    assert answered[200] > 20 and answered[400] > 60, answered
