"""Requests to a served demo model, and their answers."""

from __future__ import annotations

import json
from pathlib import Path

import pageant

DEMO = Path(pageant.__file__).parent / "models" / "demo"
TEXT, CHAT, RESPONSES, MESSAGES = "/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages"
PROMPT = "A dictionary maps keys to"
QUESTION = [{"role": "user", "content": "Explain the with statement"}]


def post(http, path, **body):
    """Return the JSON of an answer, which must be a 200."""
    answer = http.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def streamed(http, path, **body):
    """Return the chunks of a streamed answer, which must be whole."""
    with http.stream("POST", path, json=body | {"stream": True}) as answer:
        lines = [line for line in answer.iter_lines() if line]
    assert answer.status_code == 200 and lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def params(**more):
    """Return sampling parameters, with 12 tokens at most unless more are asked for."""
    return pageant.SamplingParams(**{"max_tokens": 12} | more)
