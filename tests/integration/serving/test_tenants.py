"""Tenants, each with a key of its own: what one makes, another neither sees nor ends."""

from __future__ import annotations

import json
from contextlib import contextmanager

import httpx
import pytest

KEYS = {"a": "key-of-a", "b": "key-of-b", "operator": "key-of-operator"}
PROMPT = "A list is a sequence of values, which may be of any type, and may be changed. " * 3
LONG = {"model": "demo", "messages": [{"role": "user", "content": "Count."}], "max_tokens": 800}
ENDLESS = LONG | {"ignore_eos": True, "stream": True}

OWNED = {
    "/v1/responses": {"post"},  # `previous_response_id`
    "/v1/responses/{name}": {"get", "delete"},
    "/v1/responses/{name}/cancel": {"post"},
    "/v1/responses/{name}/input_items": {"get"},
    "/abort_requests": {"post"},
    "/statistics": {"get"},  # the open requests
}
"""Routes by which a tenant might meet what another made; the tests below show that it does not."""
SHARED = {
    "/health": {"get"},
    "/ready": {"get"},
    "/version": {"get"},
    "/": {"get"},
    "/docs": {"get"},
    "/load": {"get"},
    "/ping": {"get", "post"},
    "/server_info": {"get"},
    "/tokenizer_info": {"get"},
    "/invocations": {"post"},
    "/v1/audio/transcriptions": {"post"},
    "/v1/audio/translations": {"post"},
    "/v1/chat/completions/batch": {"post"},
    "/metrics": {"get"},  # sums over all tenants
    "/v1/models": {"get"},
    "/v1/models/{name}": {"get"},
    "/v1/completions": {"post"},
    "/v1/chat/completions": {"post"},
    "/v1/messages": {"post"},
    "/v1/messages/count_tokens": {"post"},
    "/tokenize": {"post"},
    "/detokenize": {"post"},
    **{
        route: {"post"}
        for route in (
            *("/v1/embeddings", "/pooling", "/classify", "/score", "/v1/score"),
            *("/rerank", "/v1/rerank", "/v2/rerank"),
        )
    },
}
"""Routes that keep nothing of a request, and know none of another's."""
LOADED = {"/v1/load_lora_adapter": {"post"}, "/v1/unload_lora_adapter": {"post"}}
"""Routes for what is its tenant's own (test_runtime_adapters.py)."""
OPERATORS = {
    "/pause": {"post"},
    "/resume": {"post"},
    "/is_paused": {"get"},
    "/reset_prefix_cache": {"post"},
    "/sleep": {"post"},
    "/wake_up": {"post"},
    "/is_sleeping": {"get"},
    "/update_weights": {"post"},
    "/weight_info": {"get"},
    "/replicas": {"get"},
    "/replicas/add": {"post"},
    "/replicas/drain": {"post"},
    "/replicas/remove": {"post"},
    "/actors/killable": {"get"},
    "/actors/kill": {"post"},
    "/schedulers": {"get"},
    "/schedulers/policy": {"post"},
}
"""Routes that refuse a tenant (test_operators.py)."""


@pytest.fixture(scope="module")
def tenants(start):
    """A client for each key."""
    tenant_keys, operator_keys = (KEYS["a"], KEYS["b"]), (KEYS["operator"],)
    url = start(api_keys=tenant_keys, operator_keys=operator_keys).served_at().split()[-1]
    clients = {
        name: httpx.Client(base_url=url, timeout=60, headers={"authorization": f"Bearer {key}"})
        for name, key in KEYS.items()
    }
    yield clients
    for client in clients.values():
        client.close()


@pytest.fixture
def a(tenants):
    return tenants["a"]


@pytest.fixture
def b(tenants):
    return tenants["b"]


@pytest.fixture
def operator(tenants):
    return tenants["operator"]


def test_every_route_is_known_to_be_a_tenants_own_or_to_keep_nothing(a):
    paths = {path: {*methods} for path, methods in a.get("/openapi.json").json()["paths"].items()}
    assert paths == OWNED | SHARED | LOADED | OPERATORS


def stored(client, **more):
    answer = client.post(
        "/v1/responses", json={"model": "demo", "input": "Hi", "max_output_tokens": 4, **more}
    )
    assert answer.status_code == 200, answer.text
    return answer.json()["id"]


def test_a_stored_response_is_its_tenants_own(a, b, operator):
    name = stored(a)
    for answer in (
        b.get(f"/v1/responses/{name}"),
        b.get(f"/v1/responses/{name}/input_items"),
        b.post(f"/v1/responses/{name}/cancel"),
        b.delete(f"/v1/responses/{name}"),
        b.post("/v1/responses", json={"model": "demo", "input": "Hi", "previous_response_id": name}),
    ):
        assert answer.status_code == 404 and answer.json()["error"]["code"] == "response_not_found"
    assert a.get(f"/v1/responses/{name}").json()["id"] == name
    assert operator.get(f"/v1/responses/{name}").json()["id"] == name
    assert operator.get(f"/v1/responses/{name}/input_items").json()["data"][0]["role"] == "user"
    stored(a, previous_response_id=name)
    assert operator.delete(f"/v1/responses/{name}").status_code == 200
    assert a.get(f"/v1/responses/{name}").status_code == 404


@contextmanager
def streaming(client, name):
    """An answer that has begun, under an id of the client's own."""
    with client.stream(
        "POST", "/v1/chat/completions", json=ENDLESS, headers={"x-request-id": name}
    ) as answer:
        lines = answer.iter_lines()
        assert next(lines).startswith("data: ")
        yield lines


def ended_by(lines):
    return [
        choice["finish_reason"]
        for line in lines
        if line.startswith("data: {")
        for choice in json.loads(line[6:])["choices"]
        if choice["finish_reason"] is not None
    ]


def abort(client, *names):
    return client.post("/abort_requests", json={"request_ids": names})


def test_a_running_request_is_ended_by_its_tenant_alone_though_both_chose_one_id(a, b, operator):
    with streaming(a, "mine") as of_a:
        assert abort(b, "mine").status_code == 404
        with streaming(b, "mine") as of_b:
            assert abort(b, "mine").json()["aborted"] == ["mine"]
            assert ended_by(of_b) == ["abort"]
        assert abort(b, "mine").status_code == 404
        assert abort(operator, "mine").json()["aborted"] == ["mine"]
        assert ended_by(of_a) == ["abort"]


def test_only_an_operator_sees_who_is_served(a, b, operator):
    def seen(client):
        frontends = client.get("/statistics").json()["frontends"]
        return [one["request_id"] for frontend in frontends.values() for one in frontend["open"]]

    with streaming(a, "secret"):
        assert any("secret" in name for name in seen(operator))
        assert seen(a) == seen(b) == []
        assert abort(a, "secret").status_code == 200


def cached_tokens(client, prompt):
    answer = client.post("/v1/completions", json={"model": "demo", "prompt": prompt, "max_tokens": 1})
    return answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]


def test_cached_prefixes_are_shared_within_a_tenant_only(a, b):
    assert cached_tokens(a, PROMPT) == 0
    assert cached_tokens(a, PROMPT) > 0
    assert cached_tokens(b, PROMPT) == 0  # else the time would tell what the other asked
    assert cached_tokens(b, PROMPT) > 0


def test_a_topology_may_let_tenants_share_cached_prefixes(start):
    url = start(api_keys=("x", "y"), cache_scope="all").served_at().split()[-1]
    found = []
    for key in ("x", "y"):
        with httpx.Client(base_url=url, timeout=60, headers={"authorization": f"Bearer {key}"}) as client:
            found.append(cached_tokens(client, PROMPT))
    assert found[0] == 0 < found[1]
