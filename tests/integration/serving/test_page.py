"""The web page: its files, who is given them, and the statistics that it draws."""

from __future__ import annotations

import asyncio
import base64
import json
import re
from pathlib import Path

import httpx
import msgspec
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

import pageant
from pageant.actors.http.page.files import page_files
from pageant.protocol.statistics import StepRecord

STATIC = Path(pageant.__file__).parent / "actors" / "http" / "page" / "static"
BROWSER = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
ALL_FILES_BYTES_MAX = 90_000


@pytest.fixture(scope="module")
def closed(start):
    """The address of a server with keys and without a page."""
    keys = {"api_keys": ("secret", "other"), "operator_keys": ("operator",)}
    return start(page=False, **keys).served_at().split()[-1]


@pytest.fixture(scope="module")
def keyed(start):
    return start(api_keys=("secret", "other"), operator_keys=("operator",)).served_at().split()[-1]


def test_a_browser_gets_the_page_and_a_program_the_index(http):
    page = http.get("/", headers=BROWSER)
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert page.content == (STATIC / "index.html").read_bytes()
    for accept in ("*/*", "application/json", "text/html;q=0, */*"):
        index = http.get("/", headers={"accept": accept})
        assert index.json()["name"] == "Pageant"
        assert index.headers["vary"] == page.headers["vary"] == "accept"


def test_every_file_has_its_type_and_is_asked_for_again_only_if_it_changed(http):
    types = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml", "html": "text/html"}
    for name in (one.name for one in STATIC.iterdir()):
        got = http.get(f"/page/{name}")
        assert got.headers["content-type"].partition(";")[0] == types[name.rpartition(".")[2]]
        assert got.content == (STATIC / name).read_bytes()
        assert got.headers["cache-control"] == "no-cache"
        again = http.get(f"/page/{name}", headers={"if-none-match": f'"x", W/{got.headers["etag"]}'})
        assert (again.status_code, again.content) == (304, b"")
        assert http.get(f"/page/{name}", headers={"if-none-match": '"x"'}).status_code == 200
    for wrong in ("nothing.js", "..%2Ffiles.py", "files.py", "%2e%2e"):
        assert http.get(f"/page/{wrong}").status_code == 404


def test_the_page_may_load_nothing_from_elsewhere(http):
    directives = dict(
        one.strip().split(" ", 1)
        for one in http.get("/", headers=BROWSER).headers["content-security-policy"].split(";")
    )
    assert directives["default-src"] == directives["frame-ancestors"] == directives["base-uri"] == "'none'"
    assert directives["script-src"] == directives["style-src"] == directives["connect-src"] == "'self'"
    assert "unsafe" not in str(directives)
    sources = {one.name: one.read_text() for one in STATIC.iterdir()}
    for name, text in sources.items():
        foreign = {*re.findall(r"https?://[\w.]+", text)} - {
            "http://www.w3.org"
        }  # the name of SVG's elements
        assert not foreign, name
    page = sources["index.html"]
    assert not re.search(r"<script[^>]*>[^<]|\sstyle=|\son\w+=|<style", page)  # the policy would refuse these
    for named in re.findall(r'(?:src|href)="page/([^"]+)"', page):
        assert named in sources
    for text in sources.values():
        assert {*re.findall(r'from "\./([^"]+)"', text)} <= sources.keys()


def test_the_page_is_small():
    assert sum(len(one.body) for one in page_files().values()) < ALL_FILES_BYTES_MAX


def test_the_page_can_be_left_out(closed):
    with httpx.Client(base_url=closed, headers={"authorization": "Bearer secret"}) as http:
        assert http.get("/", headers=BROWSER).json()["models"] == ["demo"]
        assert http.get("/page/page.js").status_code == 404


def test_the_page_is_behind_the_key_which_a_browser_asks_its_user_for(keyed):
    with httpx.Client(base_url=keyed) as http:
        refused = http.get("/", headers=BROWSER)
        assert refused.status_code == 401
        assert refused.headers["www-authenticate"].startswith('Basic realm="')
        # A script's question must not open the browser's dialog.
        assert "www-authenticate" not in http.get("/statistics", headers={"accept": "*/*"}).headers
        assert http.get("/page/page.js").status_code == 401
        assert http.get("/", headers=BROWSER, auth=("anybody", "secret")).text.startswith("<!doctype html>")
        assert http.get("/", headers=BROWSER | {"authorization": "Bearer secret"}).status_code == 200
        assert http.get("/page/page.js", auth=("", "operator")).status_code == 200
        for wrong in ("wrong", "", "secret:x"):
            assert http.get("/load", auth=("secret", wrong)).status_code == 401
        for text in ("!", base64.b64encode(b"\xff\xff").decode(), base64.b64encode(b"secret").decode(), "="):
            assert http.get("/load", headers={"authorization": f"Basic {text}"}).status_code == 401


async def first_message(url, key=None):
    """Return the first message of the WebSocket that the page follows."""
    headers = {"authorization": f"Bearer {key}"} if key else {}
    place = url.replace("http", "ws", 1) + "/statistics/stream"
    async with connect(place, additional_headers=headers, max_size=None) as socket:
        return json.loads(await socket.recv())


async def test_the_stream_has_what_statistics_has(url):
    async with httpx.AsyncClient(base_url=url, timeout=60) as http:
        streamed, asked = await first_message(url), (await http.get("/statistics")).json()
        assert streamed.keys() == asked.keys()
        for seen in (streamed, asked):
            seen["executors"]["executor/0"].pop("memory_bytes")  # free memory changes from look to look
            seen["executors"]["executor/0"].pop("last_steps")  # asked for by those who follow
        for name in ("models", "actors", "pools", "executors", "https", "spans", "routers"):
            assert streamed[name] == asked[name]
        (one,), (other,) = streamed["nodes"].values(), asked["nodes"].values()
        assert one.keys() == other.keys() and one["pid"] == other["pid"]
        assert 0 < streamed["at"] < asked["at"]


async def test_the_stream_is_behind_the_key_and_not_for_pages_of_other_origins(keyed):
    for key in (None, "wrong"):
        with pytest.raises(InvalidStatus) as refused:
            await first_message(keyed, key)
        assert refused.value.response.status_code == 403
    place = keyed.replace("http", "ws", 1) + "/statistics/stream"
    headers = {"authorization": "Bearer secret"}
    with pytest.raises(InvalidStatus) as refused:
        async with connect(place, additional_headers=headers, origin="https://elsewhere.example"):
            pass
    assert refused.value.response.status_code == 403


async def test_what_the_client_sends_on_the_stream_is_ignored(url):
    async with connect(url.replace("http", "ws", 1) + "/statistics/stream", max_size=None) as socket:
        await socket.send("hello")
        await socket.send(b"\xff")
        assert json.loads(await socket.recv())["at"] < json.loads(await socket.recv())["at"]


async def test_a_tenant_sees_no_open_requests_in_the_stream(keyed):
    long = {"messages": [{"role": "user", "content": "Count"}], "max_tokens": 900, "ignore_eos": True}
    keys = {one: {"authorization": f"Bearer {one}"} for one in ("secret", "other", "operator")}
    async with httpx.AsyncClient(base_url=keyed, timeout=60) as http:
        body = long | {"stream": True}
        async with http.stream("POST", "/v1/chat/completions", json=body, headers=keys["other"]) as chat:
            lines = chat.aiter_lines()
            while "data:" not in await anext(lines):
                pass
            events = await asyncio.gather(*(first_message(keyed, key) for key in keys))
    seen = dict(zip(keys, events, strict=True))
    told = {
        key: [one for front in at["frontends"].values() for one in front["open"]] for key, at in seen.items()
    }
    assert told["secret"] == told["other"] == [] and len(told["operator"]) == 1


async def test_nobody_is_asked_while_nobody_looks(url):
    """A follower of the stream has the observer asked; without one, only this test asks it."""

    async def asked_of(http):
        """Return how many observations there were before this one."""
        seen = (await http.get("/statistics")).json()
        (observer,) = [
            node["actors"]["observer"] for node in seen["nodes"].values() if "observer" in node["actors"]
        ]
        return observer["kinds"]["GetObservation"][0]

    async with httpx.AsyncClient(base_url=url, timeout=60) as http:
        before = await asked_of(http)
        await asyncio.gather(first_message(url), first_message(url))
        after = await asked_of(http)
        assert 1 <= after - before - 1 <= 2  # two followers share their looks
        assert await asked_of(http) == after + 1


async def test_the_steps_of_executors_add_up_to_their_counters(start):
    """The last plans that `/statistics` tells of on demand are all that there were, of a server that is new."""
    async with httpx.AsyncClient(base_url=start().served_at().split()[-1], timeout=60) as http:
        body = {"messages": [{"role": "user", "content": "Explain lambda"}], "max_tokens": 20, "n": 3}
        used = [
            (await http.post("/v1/chat/completions", json=body | more)).json()["usage"]
            for more in ({}, {"temperature": 0, "n": 1})
        ]
        told = (await http.get("/statistics", params={"steps": 256})).json()["executors"]["executor/0"]
        assert (await http.get("/statistics")).json()["executors"]["executor/0"]["last_steps"] == []
        for wrong in ("-1", "257", "x", "1.5", "٣"):
            assert (await http.get("/statistics", params={"steps": wrong})).status_code == 400
    steps = [msgspec.convert(one, StepRecord) for one in told["last_steps"]]
    assert 0 < len(steps) < 256
    assert steps[-1].number == sum(one.num_steps for one in steps) == told["steps"]
    assert sum(one.num_steps * one.rows for one in steps) == told["rows"]
    assert sum(one.prefill_tokens + one.decode_tokens for one in steps) == told["tokens"]
    # The prompts are alike, so that later sequences find them cached. All that is computed of them is prefill.
    prefill = sum(one.prefill_tokens for one in steps)
    assert used[0]["prompt_tokens"] <= prefill <= 4 * used[0]["prompt_tokens"]
    assert sum(one.new_rows for one in steps) == 4
    assert sum(one.sampled for one in steps) >= sum(one["completion_tokens"] for one in used)
    times = [(one.came, one.began, one.ended) for one in steps]
    assert all(came <= began < ended for came, began, ended in times)
    busy = sum(one.ended - one.began for one in steps)
    assert busy >= told["busy_seconds"] - 1e-9
