"""Parameters that cannot be served are refused by the name that the client used."""

from __future__ import annotations

import pytest

from tests.integration.serving.asking import CHAT, MESSAGES, PROMPT, QUESTION, RESPONSES, TEXT

SELF = {"type": "array", "items": {"$ref": "http://elsewhere/schema"}}


@pytest.mark.parametrize(
    ("path", "more", "param"),
    [
        (TEXT, {"suffix": "x"}, "suffix"),
        (TEXT, {"use_beam_search": True, "stop": "a"}, "stop"),
        (TEXT, {"use_beam_search": True, "logprobs": 1}, "logprobs"),
        (TEXT, {"use_beam_search": True, "n": 65}, "n"),
        (TEXT, {"use_beam_search": True, "n": 60, "prompt": ["a"] * 3}, "n"),
        (TEXT, {"use_beam_search": True, "length_penalty": 1000}, "length_penalty"),
        (CHAT, {"use_beam_search": True, "presence_penalty": 1}, "presence_penalty"),
        (CHAT, {"use_beam_search": True, "max_completion_tokens": 0}, "max_completion_tokens"),
        (CHAT, {"use_beam_search": True, "response_format": {"type": "json_object"}}, "response_format"),
        (CHAT, {"use_beam_search": True, "messages": QUESTION * 200}, "messages"),
        (TEXT, {"logprobs": 21}, "logprobs"),
        (TEXT, {"prompt_logprobs": 21}, "prompt_logprobs"),
        (TEXT, {"logprob_token_ids": [5]}, "logprob_token_ids"),
        (CHAT, {"logprob_token_ids": [5]}, "logprob_token_ids"),
        (CHAT, {"logprob_token_ids": [], "logprobs": True}, "logprob_token_ids"),
        (CHAT, {"logprob_token_ids": [10**7], "logprobs": True}, "logprob_token_ids"),
        (TEXT, {"n": 2, "temperature": 0}, "n"),
        (TEXT, {"n": 3, "best_of": 2}, "best_of"),
        (TEXT, {"best_of": 3, "stream": True}, "best_of"),
        (TEXT, {"prompt": ["a"] * 100, "n": 2}, "n"),
        (TEXT, {"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        (TEXT, {"stream_options": {}}, "stream_options"),
        (TEXT, {"priority": 2**40}, "priority"),
        (TEXT, {"cache_salt": "x" * 1000}, "cache_salt"),
        (TEXT, {"deadline": -1}, "deadline"),
        (TEXT, {"request_id": "a b"}, "request_id"),
        (TEXT, {"stop_token_ids": [-1]}, "stop_token_ids[0]"),
        (TEXT, {"allowed_token_ids": [10**7]}, "allowed_token_ids"),
        (TEXT, {"vllm_xargs": {"a": {}}}, "vllm_xargs"),
        (CHAT, {"top_logprobs": 2}, "top_logprobs"),
        (CHAT, {"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        (CHAT, {"logprobs": True, "top_logprobs": -2}, "top_logprobs"),
        (CHAT, {"max_completion_tokens": -1}, "max_completion_tokens"),
        (CHAT, {"max_tokens": -1}, "max_tokens"),
        (CHAT, {"response_format": {"type": "regex"}}, "response_format"),
        (CHAT, {"structured_outputs": {"regex": "("}}, "structured_outputs"),
        (CHAT, {"chat_template": "{{ 1 }}"}, "chat_template"),
        (CHAT, {"chat_template_kwargs": {"a": "x" * 70_000}}, "chat_template_kwargs"),
        (CHAT, {"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        (CHAT, {"continue_final_message": True}, "continue_final_message"),
        (CHAT, {"messages": QUESTION * 5000}, "messages"),
        (MESSAGES, {"max_tokens": -1}, "max_tokens"),
        (MESSAGES, {"stop_sequences": [""]}, "stop_sequences"),
        (MESSAGES, {"messages": QUESTION * 200}, "messages"),
        (
            MESSAGES,
            {"output_config": {"format": {"type": "json_schema", "schema": 3}}},
            "output_config.format",
        ),
        (MESSAGES, {"output_config": {"format": {"type": "x"}}}, "output_config.format"),
        (RESPONSES, {"max_output_tokens": -1}, "max_output_tokens"),
        (RESPONSES, {"input": []}, "input"),
        (RESPONSES, {"input": "word " * 3000}, "input"),
        (RESPONSES, {"text": {"format": {"type": "x"}}}, "text.format"),
        (
            RESPONSES,
            {"text": {"format": {"type": "json_schema", "name": "a", "schema": SELF}}},
            "text.format",
        ),
    ],
)
def test_what_cannot_be_served_is_refused_by_the_name_that_its_client_has_for_it(http, path, more, param):
    bodies = {
        TEXT: {"prompt": PROMPT, "max_tokens": 2},
        CHAT: {"messages": QUESTION},
        RESPONSES: {"input": "x"},
    }
    bodies[MESSAGES] = {"messages": QUESTION, "max_tokens": 2}
    answer = http.post(path, json=bodies[path] | more)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param), answer.text
    inside = {"max_tokens", "logprobs", "response_format", "structured_outputs", "stop"} - {*param.split("[")}
    assert error["message"].split()[0].rstrip(":") not in inside, answer.text


@pytest.mark.parametrize(
    "tokens", [[-1], [10**7], [5, "x"], [5] * 2000, "5", None, [2**70]], ids=lambda ids: str(ids)[:20]
)
def test_tokens_that_are_none_have_no_text(http, tokens):
    answer = http.post("/detokenize", json={"tokens": tokens})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "tokens"), answer.text
