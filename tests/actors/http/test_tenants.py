"""Tenants: a request takes the share of a key, or that of the user whom it names."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
import pytest
from litestar import Request, get
from litestar.testing import TestClient

from pageant.actors.frontend.prompts import Limits
from pageant.actors.http.anthropic.requests import MessagesRequest
from pageant.actors.http.app import make_app
from pageant.actors.http.chat.conversation import DEFAULT_RULES
from pageant.actors.http.openai.chat_requests import ChatRequest
from pageant.actors.http.openai.response_requests import ResponseRequest
from pageant.actors.http.served import Served
from pageant.actors.http.tenants import EVERYBODY, Keys
from pageant.protocol.sampling import SamplingParams


@get("/whose")
async def whose(request: Request[Any, Any, Any]) -> str:
    fields = {"messages": [{"role": "user", "content": "x"}], "user": request.query_params.get("user")}
    return msgspec.convert(fields, ChatRequest).settings()["tenant"]


def app(*keys: str) -> Any:
    return make_app([whose], keys=Keys(keys), allowed_origins=(), body_bytes_max=1000, errors=Counter())


def test_without_keys_it_is_the_users():
    with TestClient(app()) as client:
        assert client.get("/whose").text == ""
        assert client.get("/whose?user=ann").text == "ann"
        assert client.get("/whose?user=" + "b" * 1000).text == "b" * 64


def test_with_keys_each_is_a_tenant_whatever_users_it_names():
    with TestClient(app("first", "second")) as client:
        for key, number in ("second", 1), ("first", 0), ("second", 1):
            answer = client.get("/whose?user=ann", headers={"authorization": f"Bearer {key}"})
            assert answer.text == f"key {number}"
        assert client.get("/whose").status_code == 401


def test_other_shapes_name_users_too():
    limits = Limits(vocab_size=10, max_model_len=8, max_logprobs=1, defaults=SamplingParams())
    served = Served("m", "", limits, None)
    response = msgspec.convert({"input": "x", "user": "ann"}, ResponseRequest)
    message = msgspec.convert(
        {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1, "metadata": {"user_id": "ann"}},
        MessagesRequest,
    )
    assert response.chat_fields([])["user"] == "ann"
    assert message.chat(served, DEFAULT_RULES).settings["tenant"] == "ann"


def test_a_key_alone_is_an_operators_and_of_several_only_those_that_are_named_so():
    alone = Keys(["only"]).find("only")
    assert alone is not None and alone.is_operator and alone.owns("key 7")
    keys = Keys(["a", "b"], ["root"])
    a, root = keys.find("a"), keys.find("root")
    assert a is not None and a.owns("key 0") and not a.owns("key 1") and not a.owns(None)
    assert root is not None and root.owns("key 0") and root.owns("key 1")
    assert keys.find("c") is None and not Keys([])
    assert EVERYBODY.owns("key 0") and EVERYBODY.owns(None)


@pytest.mark.parametrize(
    ("keys", "wanted", "scope"),
    [
        (Keys([]), None, "all"),
        (Keys(["a"]), None, "all"),
        (Keys(["a", "b"]), None, "tenant"),
        (Keys(["a"], ["root"]), None, "tenant"),
        (Keys(["a", "b"]), "all", "all"),
        (Keys(["a"]), "tenant", "tenant"),
    ],
)
def test_several_keys_share_no_cached_prefixes_unless_the_topology_says_so(keys, wanted, scope):
    assert keys.cache_scope(wanted) == scope
