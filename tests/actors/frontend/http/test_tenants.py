"""Whose share a request takes: a key's, or that of the user whom it names."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
import pytest
from litestar import Request, get
from litestar.testing import TestClient

from pageant.actors.frontend.http.anthropic.requests import MessagesRequest
from pageant.actors.frontend.http.app import make_app
from pageant.actors.frontend.http.openai.chat import ChatRequest
from pageant.actors.frontend.http.openai.response_requests import ResponseRequest


@get("/whose")
async def whose(request: Request[Any, Any, Any]) -> str:
    fields = {"messages": [{"role": "user", "content": "x"}], "user": request.query_params.get("user")}
    return msgspec.convert(fields, ChatRequest).settings()["tenant"]


def app(*keys: str) -> Any:
    return make_app([whose], api_keys=keys, allowed_origins=(), body_bytes_max=1000, errors=Counter())


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


@pytest.mark.parametrize(
    "fields",
    [
        msgspec.convert({"input": "x", "user": "ann"}, ResponseRequest).chat_fields([]),
        msgspec.convert(
            {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1, "metadata": {"user_id": "ann"}},
            MessagesRequest,
        ).chat_fields(),
    ],
    ids=["responses", "messages"],
)
def test_other_shapes_name_users_too(fields):
    assert fields["user"] == "ann"
