"""Adapters over HTTP: each is a model of its own to clients, by its name."""

from __future__ import annotations

import anthropic
import httpx
import openai
import pytest

from pageant.actors.client.session import Session
from pageant.actors.client.settings import topology_of

from .conftest import SMALL

PROMPT = [5, 6, 7, 8]
LENGTH = 12
MESSAGES = [{"role": "user", "content": "ab"}]


@pytest.fixture(scope="module")
def adapter(checkpoint, save_adapter):
    found = save_adapter(checkpoint.model, ("q_proj", "v_proj", "up_proj"), size=0.3)
    found.merged.generation_config = checkpoint.model.generation_config
    return found


@pytest.fixture(scope="module")
def right(checkpoint, adapter):
    """Return what transformers says, by the models' names."""
    kind = type(checkpoint)
    models = {"base": checkpoint.model, "tuned": adapter.merged}
    return {name: kind(checkpoint.path, model, 0).greedy(PROMPT, LENGTH) for name, model in models.items()}


@pytest.fixture(scope="module")
def url(checkpoint, adapter):
    actors = {"http": {"options": {"port": 0}}}
    settings = {"actors": actors, "adapters": {"tuned": adapter.path}, "dtype": "float32"}
    session = Session(topology_of(checkpoint.path, None, SMALL | settings | {"served_model_name": "base"}))
    session.start()
    assert session.served_at().startswith("base, tuned on")
    yield session.served_at().split()[-1]
    session.stop()


@pytest.fixture
def client(url):
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_they_are_listed_with_their_model_and_without_a_path(client, url, adapter):
    listed = [model.model_dump() for model in client.models.list()]
    assert [(model["id"], model["root"], model["parent"]) for model in listed] == [
        ("base", "base", None),
        ("tuned", "tuned", "base"),
    ]
    assert client.models.retrieve("tuned").id == "tuned"
    assert str(adapter.path) not in httpx.get(f"{url}/v1/models").text


def test_the_model_of_a_request_chooses_the_adapter(client, right):
    assert right["base"] != right["tuned"]
    more = {"extra_body": {"ignore_eos": True, "return_token_ids": True}}
    for name in ("base", "tuned", "base"):
        asked = {"model": name, "prompt": PROMPT, "temperature": 0, "max_tokens": LENGTH, **more}
        answer = client.completions.create(**asked)
        assert (answer.model, answer.choices[0].token_ids) == (name, right[name])
        chunks = list(client.completions.create(stream=True, **asked))
        assert {chunk.model for chunk in chunks} == {name}
        assert [token for chunk in chunks for token in chunk.choices[0].token_ids] == right[name]


def test_conversations_go_to_it_by_every_route(client, url):
    asked = {"messages": MESSAGES, "temperature": 0, "max_tokens": LENGTH, "extra_body": {"ignore_eos": True}}
    texts = {}
    for name in ("base", "tuned"):
        chat = client.chat.completions.create(model=name, **asked)
        assert chat.model == name
        texts[name] = chat.choices[0].message.content
    assert texts["base"] != texts["tuned"]
    response = client.responses.create(
        model="tuned", input="ab", temperature=0, max_output_tokens=LENGTH, extra_body={"ignore_eos": True}
    )
    assert (response.model, response.output_text) == ("tuned", texts["tuned"])
    with anthropic.Anthropic(base_url=url, api_key="none", max_retries=0) as other:
        message = other.messages.create(
            model="tuned",
            messages=MESSAGES,
            max_tokens=LENGTH,
            extra_body={"ignore_eos": True, "temperature": 0},
        )
    assert (message.model, message.content[0].text) == ("tuned", texts["tuned"])
    tokens = httpx.post(f"{url}/tokenize", json={"model": "tuned", "prompt": "ab"}).json()
    assert tokens["count"] == 2


def test_a_name_that_is_not_served_is_not_found(client):
    with pytest.raises(openai.NotFoundError, match="expected 'base', 'tuned'") as error:
        client.chat.completions.create(model="tunes", messages=MESSAGES)
    assert error.value.code == "model_not_found"


def test_clients_cannot_choose_an_adapter_beside_the_model(url):
    body = {"model": "base", "prompt": PROMPT, "max_tokens": 1, "adapter": "tuned"}
    answer = httpx.post(f"{url}/v1/completions", json=body)
    assert answer.headers["x-pageant-fields-without-effect"] == "adapter"


def test_an_engine_with_adapters_is_healthy(url):
    assert httpx.get(f"{url}/health").status_code == 200
