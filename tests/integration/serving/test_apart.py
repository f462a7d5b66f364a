"""A server whose replicas compute prompts or outputs: clients see one engine."""

from __future__ import annotations

import httpx
import openai
import pytest

CHAT = {"max_tokens": 24, "temperature": 0, "extra_body": {"ignore_eos": True}}


@pytest.fixture(scope="module")
def apart(start):
    """Each request is handed over after its first token."""
    kinds = {"prefill": {"count": 1}, "decode": {"count": 1}}
    actors = {
        "router": {"options": {"handover": "always"}},
        "store": {"options": {"memory": "16MiB"}},
    }
    return start({"replicas": kinds, "actors": actors}).served_at().split()[-1]


@pytest.fixture(scope="module")
def apart_client(apart):
    with openai.OpenAI(base_url=f"{apart}/v1", api_key="none", max_retries=0) as client:
        yield client


def handed_over(url):
    page = httpx.get(f"{url}/metrics").text
    (line,) = (
        one
        for one in page.splitlines()
        if one.startswith("pageant:scheduler_handed_over_total") and '0"' in one
    )
    return float(line.rpartition(" ")[2])


def chat(client, topic="a context manager", **settings):
    """Ask of a topic. A replica that has the prompt cached computes outputs without a handover."""
    (model, *_) = client.models.list().data
    turn = {"role": "user", "content": f"Say what {topic} is, and when one is of use. " * 4}
    return client.chat.completions.create(model=model.id, messages=[turn], **CHAT, **settings)


def test_answers_are_those_of_one_engine_and_usage_counts_no_handover_as_cached(client, apart_client, apart):
    before = handed_over(apart)
    right, found = chat(client, logprobs=True), chat(apart_client, logprobs=True)
    assert found.choices[0].message.content == right.choices[0].message.content
    assert [one.token for one in found.choices[0].logprobs.content] == [
        one.token for one in right.choices[0].logprobs.content
    ]
    assert handed_over(apart) == before + 1
    assert found.usage.prompt_tokens == right.usage.prompt_tokens
    assert found.usage.prompt_tokens_details.cached_tokens == 0
    again = chat(apart_client)
    assert again.usage.prompt_tokens_details.cached_tokens == found.usage.prompt_tokens - 1


def test_streams_are_handed_over_too(client, apart_client, apart):
    before = handed_over(apart)
    texts = []
    for one in (client, apart_client):
        pieces = [piece for piece in chat(one, "a generator", stream=True) if piece.choices]
        texts.append("".join(piece.choices[0].delta.content or "" for piece in pieces))
    assert texts[0] == texts[1] and handed_over(apart) == before + 1
