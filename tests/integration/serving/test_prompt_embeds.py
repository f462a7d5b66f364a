"""`prompt_embeds` over HTTP: what follows on embeddings, and what is refused."""

from __future__ import annotations

import base64

import httpx
import openai
import pytest
import torch
from safetensors.torch import load_file, save

from .conftest import DEMO

ASKED = {"model": "demo", "temperature": 0, "max_tokens": 12}
QUESTION = "Explain the with statement"


@pytest.fixture(scope="module")
def server(start):
    url = start({"enable_prompt_embeds": True}).served_at().split()[-1]
    with httpx.Client(base_url=url, timeout=60) as http:
        yield http


@pytest.fixture(scope="module")
def rows(server):
    """The embeddings of a question's tokens."""
    ids = server.post("/tokenize", json={"model": "demo", "prompt": QUESTION}).json()["tokens"]
    (weight,) = [one for name, one in load_file(DEMO / "model.safetensors").items() if "embed_tokens" in name]
    return weight[torch.tensor(ids)].float()


def written(rows, **more):
    return base64.b64encode(save({"prompt_embeds": rows.contiguous()} | more)).decode()


def complete(server, **fields):
    answer = server.post("/v1/completions", json=ASKED | fields)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_what_follows_on_embeddings_is_what_follows_on_their_tokens(server, rows):
    right = complete(server, prompt=QUESTION, logprobs=1)
    for given in ({}, {"prompt": ""}, {"prompt": None}):
        found = complete(server, prompt_embeds=written(rows), logprobs=1, **given)
        assert found["choices"] == right["choices"]
        assert found["usage"]["prompt_tokens"] == len(rows) == right["usage"]["prompt_tokens"]
    again = complete(server, prompt_embeds=written(rows), return_token_ids=True)
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == len(rows) - 1
    assert again["choices"][0]["prompt_token_ids"] == [0] * len(rows)


def test_several_prompts_come_before_those_of_text_and_each_has_its_choices(server, rows):
    both = [written(rows), written(rows[:3])]
    alone = [complete(server, prompt_embeds=one)["choices"][0]["text"] for one in both]
    text = complete(server, prompt=QUESTION)["choices"][0]["text"]
    found = complete(server, prompt_embeds=both, prompt=[QUESTION])
    assert [choice["text"] for choice in found["choices"]] == [*alone, text]
    drawn = complete(server, prompt_embeds=both, prompt=[QUESTION], n=2, temperature=1, seed=3)
    assert [choice["index"] for choice in drawn["choices"]] == list(range(6))


def test_embeddings_are_streamed_guided_and_sent_by_the_official_client(server, rows):
    with openai.OpenAI(
        base_url=str(server.base_url).rstrip("/") + "/v1", api_key="none", max_retries=0
    ) as client:
        body = {"prompt_embeds": written(rows)}
        stream = client.completions.create(prompt="", stream=True, extra_body=body, **ASKED)
        text = "".join(chunk.choices[0].text for chunk in stream)
        assert text == client.completions.create(prompt=QUESTION, **ASKED).choices[0].text
        guided = {"structured_outputs": {"choice": ["left", "right"]}}
        answer = client.completions.create(prompt="", extra_body=body | guided, **ASKED)
    assert answer.choices[0].text in ("left", "right")


def test_tenants_salts_keep_equal_embeddings_apart(server, rows):
    def cached(**fields):
        usage = complete(server, prompt_embeds=written(rows * 0.5), **fields)["usage"]
        return usage["prompt_tokens_details"]["cached_tokens"]

    assert (cached(cache_salt="a"), cached(cache_salt="b")) == (0, 0)
    assert cached(cache_salt="a") == len(rows) - 1


def refusal(server, path="/v1/completions", **fields):
    answer = server.post(path, json=ASKED | fields)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    return error["param"], error["message"]


def test_what_cannot_be_computed_with_is_a_400_that_names_it(server, rows):
    nan = rows.clone()
    nan[2, 1] = float("nan")
    for given, message in (
        (written(rows[:, :5]), f"the shape [{len(rows)}, 5]; expected [tokens, {rows.shape[1]}]"),
        (written(rows.double()), "is of F64; expected float32"),
        (written(nan), "prompt_embeds[2][1] is nan"),
        (written(rows, more=rows.clone()), "has 2 tensors; expected one"),
        ("gASVBQAAAAAAAABLAS4=", "is a pickle"),
        ("abc", "is no base64"),
        ("", "is no safetensors file"),
        ([written(rows), "abc"], "prompt_embeds[1]: prompt_embeds is no base64"),
        ([written(rows)] * 129, "has 129 entries; at most 128"),
        (7, "Expected `str | array | null`"),
    ):
        param, found = refusal(server, prompt_embeds=given)
        assert param == "prompt_embeds" and message in found, found
    long = written(rows[:1].expand(5000, -1))
    assert "has 5000 tokens; max_model_len is" in refusal(server, prompt_embeds=long)[1]


def test_what_goes_by_the_prompts_tokens_is_refused_by_name(server, rows):
    given = {"prompt_embeds": written(rows)}
    for more in (
        {"echo": True},
        {"prompt_logprobs": 1},
        {"use_beam_search": True, "n": 2},
        {"thinking_token_budget": 3},
    ):
        param, message = refusal(server, **given, **more)
        name = "prompt_embeds" if "use_beam_search" in more else next(iter(more))
        assert param == name and "prompt_embeds" in message + str(more), (param, message)
    turns = [{"role": "user", "content": "Hi"}]
    param, message = refusal(server, "/v1/chat/completions", messages=turns, **given)
    assert param == "prompt_embeds" and "/v1/completions" in message
    assert refusal(server)[0] == "prompt"  # neither


def test_they_are_refused_where_the_server_does_not_take_them(http, rows):
    param, message = refusal(http, prompt_embeds=written(rows))
    assert param == "prompt_embeds" and "enable_prompt_embeds" in message
    assert refusal(http, prompt_embeds="no safetensors")[1] == message  # it is not even read


def test_what_open_requests_hold_is_bounded(server, rows, monkeypatch):
    monkeypatch.setattr("pageant.actors.http.service.EMBEDS_BYTES_MAX", rows.nbytes * 3 // 2)
    for _ in range(3):  # one after another
        complete(server, prompt_embeds=written(rows))
    answer = server.post("/v1/completions", json=ASKED | {"prompt_embeds": [written(rows)] * 2})
    assert answer.status_code == 429 and "retry-after" in answer.headers
