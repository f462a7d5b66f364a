from __future__ import annotations

import json

import httpx
import pytest

from pageant.protocol.errors import PeerGone
from pageant.scripts.commands import top
from pageant.scripts.http_client import Client
from pageant.scripts.top.figures import figures


async def test_top_shows_what_a_server_did(server):
    url = server
    client = Client(url, "secret")
    before = await top.look(client)
    body = {"prompt": "hello", "max_tokens": 5, "ignore_eos": True, "n": 2}
    async with httpx.AsyncClient(headers={"authorization": "Bearer secret"}) as http:
        assert (await http.post(f"{url}/v1/completions", json=body)).status_code == 200
    found = figures(before, await top.look(client))
    client.close()
    assert round(found.engine.output_tokens * found.seconds) == 10
    assert round(found.engine.ended * found.seconds) == 2
    assert found.engine.latencies["ttft"].count == 1 and found.engine.latencies["itl"].count == 8
    assert {actor.name for actor in found.actors} >= {"http", "scheduler", "executor/0", "blocks", "observer"}
    assert all(actor.up for actor in found.actors)
    handled = {actor.name: round(actor.messages * found.seconds) for actor in found.actors}
    assert handled["executor/0"] >= 5 and handled["tokenizer"] == 1
    assert found.devices[0].utilisation > 0 and found.devices[0].memory["kv_cache"] > 0
    assert found.pools[0].blocks == 64 and found.nodes[0].memory > 2**20


def test_once_prints_one_interval_as_text_or_json(server, capsys):
    url = server
    top.top(url, "secret", 0.01, once=True, as_json=True)
    assert json.loads(capsys.readouterr().out)["engine"]["running"] == 0
    top.top(url, "secret", 0.01, once=True, as_json=False)
    assert "0 running, 0 waiting" in capsys.readouterr().out


async def test_a_server_that_goes_and_comes_back_is_shown_again(monkeypatch):
    looks = iter(["there", PeerGone("gone"), "there again"])

    async def look(client):
        found = next(looks)
        if isinstance(found, PeerGone):
            raise found
        return found

    told = []
    monkeypatch.setattr(top, "look", look)
    monkeypatch.setattr(top, "figures", lambda before, after: (before, after))
    await top.watch("http://127.0.0.1:9", None, 0.0, told.append, gone=told.append, once=True)
    assert [str(one) for one in told] == ["gone", "('there', 'there again')"]


def test_who_may_not_look_is_told_so(server):
    with pytest.raises(PeerGone, match="401"):
        top.top(server, None, 0.01, once=True, as_json=False)
