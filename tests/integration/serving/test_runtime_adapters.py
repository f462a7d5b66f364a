"""Adapters that come and go over HTTP: each is a model as soon as it is loaded, at every server, for its owner."""

from __future__ import annotations

import os
import signal

import httpx
import pytest

from pageant.actors.client.session import Session
from pageant.actors.client.settings import topology_of
from pageant.protocol.fronting import GetServer

from .conftest import SMALL

PROMPT = [5, 6, 7, 8]
LENGTH = 12
LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
KEYS = {"a": "key-of-a", "b": "key-of-b", "operator": "key-of-operator"}


@pytest.fixture(scope="module")
def adapter(checkpoint, save_adapter):
    found = save_adapter(checkpoint.model, ("q_proj", "v_proj", "up_proj"), size=0.3)
    found.merged.generation_config = checkpoint.model.generation_config
    return found


@pytest.fixture(scope="module")
def right(checkpoint, adapter):
    """Return what transformers says, with the adapter and without."""
    merged = type(checkpoint)(checkpoint.path, adapter.merged, 0)
    return {"base": checkpoint.greedy(PROMPT, LENGTH), "tuned": merged.greedy(PROMPT, LENGTH)}


def serve(checkpoint, **http):
    """A session whose HTTP servers are in two processes of their own."""
    settings = SMALL | {
        "dtype": "float32",
        "served_model_name": "base",
        "nodes": {"front": {}, "web-0": {"process": True}, "web-1": {"process": True}},
        "actors": {"http": {"nodes": ["web-0", "web-1"], "options": {"port": 0, **http}}},
    }
    session = Session(topology_of(checkpoint.path, None, settings))
    session.start()
    return session


@pytest.fixture(scope="module")
def open_session(checkpoint):
    session = serve(checkpoint, runtime_adapters=True, max_body_mib=1)
    yield session
    session.stop()


@pytest.fixture
def servers(open_session):
    urls = open_session.served_at().split(" on ")[1].split(", ")
    clients = [httpx.Client(base_url=url, timeout=60) for url in urls]
    yield clients
    clients[0].post(UNLOAD, json={"lora_name": "tuned"})
    for client in clients:
        client.close()


def complete(client, name, **headers):
    asked = {"model": name, "prompt": PROMPT, "max_tokens": LENGTH, "temperature": 0, "ignore_eos": True}
    return client.post(
        "/v1/completions", json=asked | {"return_token_ids": True}, headers=headers or None
    ).json()


def names(client, **headers):
    return {one["id"]: one["parent"] for one in client.get("/v1/models", headers=headers).json()["data"]}


def test_a_loaded_adapter_is_a_model_at_every_server_until_it_is_unloaded(servers, adapter, right):
    one, other = servers
    loaded = one.post(LOAD, json={"lora_name": "tuned", "lora_path": str(adapter.path)})
    assert (loaded.status_code, loaded.text) == (200, "Success: LoRA adapter 'tuned' added successfully.")
    for client in servers:
        assert names(client) == {"base": None, "tuned": "base"}
        for name in ("base", "tuned"):
            assert complete(client, name)["choices"][0]["token_ids"] == right[name]
    again = other.post(LOAD, json={"lora_name": "tuned", "lora_path": str(adapter.path)})
    assert again.status_code == 400 and "'tuned' already" in again.json()["error"]["message"]
    unloaded = other.post(UNLOAD, json={"lora_name": "tuned"})
    assert unloaded.text == "Success: LoRA adapter 'tuned' removed successfully."
    for client in servers:
        assert names(client) == {"base": None}
        assert complete(client, "tuned")["error"]["code"] == "model_not_found"


def test_a_server_that_begins_again_knows_it(open_session, servers, adapter, right):
    servers[0].post(LOAD, json={"lora_name": "tuned", "lora_path": str(adapter.path)})
    pid = next(node.pid for node in open_session.statistics() if node.node == "web-1")
    os.kill(pid, signal.SIGKILL)
    open_session.ask("http/1", GetServer(), deaths_max=2)  # waits for its next life
    url = open_session.served_at().split(" on ")[1].split(", ")[1]
    with httpx.Client(base_url=url, timeout=60) as client:
        assert names(client) == {"base": None, "tuned": "base"}
        assert complete(client, "tuned")["choices"][0]["token_ids"] == right["tuned"]


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        (LOAD, {"lora_name": "tuned", "lora_path": "/nowhere"}, 400, "no such folder"),
        (LOAD, {"lora_name": "base", "lora_path": "/nowhere"}, 400, "a model is called 'base'"),
        (LOAD, {"lora_name": "", "lora_path": ""}, 400, "texts of at least a character"),
        (LOAD, {"lora_name": "x"}, 400, "lora_path"),
        (LOAD, {"lora_name": "x", "lora_path": "y", "base_model_name": "z"}, 404, "no model 'z'"),
        (UNLOAD, {"lora_name": "nobody"}, 404, "no model 'nobody'"),
        (UNLOAD, {"lora_name": "base"}, 404, "is a model, and no adapter"),
    ],
)
def test_what_is_wrong_is_named(servers, path, body, status, words):
    answer = servers[0].post(path, json=body)
    assert answer.status_code == status and words in answer.json()["error"]["message"], answer.text
    assert names(servers[0]) == {"base": None}


def test_it_is_off_unless_somebody_turns_it_on(http):
    for path in (LOAD, UNLOAD):
        answer = http.post(path, json={"lora_name": "x", "lora_path": "y"})
        assert answer.status_code == 403 and "--runtime-adapters" in answer.json()["error"]["message"]


def test_an_adapter_is_there_for_the_key_that_loaded_it_and_for_operators(checkpoint, adapter, right):
    session = serve(
        checkpoint,
        runtime_adapters=True,
        api_keys=(KEYS["a"], KEYS["b"]),
        operator_keys=(KEYS["operator"],),
    )
    try:
        urls = session.served_at().split(" on ")[1].split(", ")
        with httpx.Client(base_url=urls[0], timeout=60) as one, httpx.Client(base_url=urls[1]) as other:
            headers = {who: {"x-api-key": key} for who, key in KEYS.items()}
            body = {"lora_name": "tuned", "lora_path": str(adapter.path)}
            assert one.post(LOAD, json=body, headers=headers["a"]).status_code == 200
            for client in (one, other):
                assert names(client, **headers["b"]) == {"base": None}
                assert complete(client, "tuned", **headers["b"])["error"]["code"] == "model_not_found"
                for who in ("a", "operator"):
                    assert names(client, **headers[who]) == {"base": None, "tuned": "base"}
                    assert (
                        complete(client, "tuned", **headers[who])["choices"][0]["token_ids"] == right["tuned"]
                    )
            replaced = one.post(LOAD, json=body | {"load_inplace": True}, headers=headers["b"])
            assert replaced.status_code == 400 and "another's" in replaced.json()["error"]["message"]
            assert other.post(UNLOAD, json={"lora_name": "tuned"}, headers=headers["b"]).status_code == 404
            assert (
                other.post(UNLOAD, json={"lora_name": "tuned"}, headers=headers["operator"]).status_code
                == 200
            )
            assert names(one, **headers["a"]) == {"base": None}
    finally:
        session.stop()
