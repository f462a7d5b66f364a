"""Layouts of HTTP servers: where they live, and how many of them there are."""

from __future__ import annotations

import os
import signal
import socket
import threading

import httpx
import openai
import pytest

import pageant
from pageant.protocol.fronting import GetHttpStatistics

CHAT = "/v1/chat/completions"
QUESTION = [{"role": "user", "content": "Explain the with statement"}]
ENDLESS = {"ignore_eos": True}
APART = {
    "nodes": {"front": {}, "web-0": {"process": True}, "web-1": {"process": True}},
    "actors": {"http": {"nodes": ["web-0", "web-1"]}},
}


@pytest.fixture(scope="module")
def pair(start):
    return start(APART)


def urls(session):
    return session.served_at().split(" on ")[1].split(", ")


def test_several_servers_in_processes_of_their_own_share_an_engine(pair, llm):
    right = llm.chat([QUESTION], pageant.SamplingParams(temperature=0.0, max_tokens=8))[0].outputs[0]
    asked = {"messages": QUESTION, "temperature": 0, "max_tokens": 8}
    assert pair.http_servers() == ["http/0", "http/1"]
    assert len(set(urls(pair))) == 2
    for url in urls(pair):
        with httpx.Client(base_url=url, timeout=60) as http:
            assert http.post(CHAT, json=asked).json()["choices"][0]["message"]["content"] == right.text
            assert http.post(CHAT, json=asked | {"stream": True}).text.endswith("data: [DONE]\n\n")
            assert http.get("/health").status_code == 200
    for name in pair.http_servers():
        statistics = pair.ask(name, GetHttpStatistics())
        assert statistics.streamed_tokens == len(right.token_ids)
        assert statistics.open_requests == 0


def test_what_began_at_one_server_is_found_by_the_others(pair):
    with (
        openai.OpenAI(base_url=f"{urls(pair)[0]}/v1", api_key="none", max_retries=0) as here,
        openai.OpenAI(base_url=f"{urls(pair)[1]}/v1", api_key="none", max_retries=0) as there,
        httpx.Client(base_url=urls(pair)[1], timeout=60) as http,
    ):
        one = here.responses.create(model="demo", input="Explain the with statement", max_output_tokens=8)
        assert there.responses.retrieve(one.id) == one
        two = there.responses.create(
            model="demo", input="Why?", previous_response_id=one.id, max_output_tokens=8
        )
        assert two.usage.input_tokens > one.usage.total_tokens
        there.responses.delete(one.id)
        for client in (here, there):
            with pytest.raises(openai.NotFoundError):
                client.responses.retrieve(one.id)
        running = here.responses.create(model="demo", input="Count", background=True, extra_body=ENDLESS)
        assert there.responses.cancel(running.id).status == "cancelled"
        short = {"background": True, "max_output_tokens": 8}
        events = list(here.responses.create(model="demo", input="Count", stream=True, **short))
        name = events[0].response.id
        assert list(there.responses.retrieve(name, stream=True, starting_after=2)) == events[3:]
        answer = threading.Thread(
            target=here.chat.completions.create,
            kwargs={"model": "demo", "messages": QUESTION, "extra_body": ENDLESS | {"request_id": "mine"}},
        )
        answer.start()
        while (aborted := http.post("/abort_requests", json={"request_ids": ["mine"]})).status_code == 404:
            pass
        answer.join()
        assert aborted.json() == {"aborted": ["mine"]}


def test_all_servers_drain(start):
    session = start(APART)
    session.drain(5.0)
    for url in urls(session):
        with httpx.Client(base_url=url) as http:
            assert http.get("/ready").status_code == 503
            assert http.post(CHAT, json={"messages": QUESTION}).status_code == 503


def test_servers_can_share_a_port(start):
    """The system deals connections out among them: 32 of them all to one would be a chance of one in 2**31."""
    with socket.socket() as held:  # bound, but not listening: the port stays free for those who share it
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        held.bind(("127.0.0.1", 0))
        session = start(APART, port=held.getsockname()[1])
    (url,) = set(urls(session))
    asked = {"messages": QUESTION, "max_tokens": 1, "stream": True}
    with httpx.Client(base_url=url, headers={"connection": "close"}) as http:
        for _ in range(32):
            http.post(CHAT, json=asked)
    told = [session.ask(name, GetHttpStatistics()).streamed_tokens for name in session.http_servers()]
    assert sum(told) == 32 and all(told)


def test_a_server_that_dies_is_started_again_and_what_it_had_open_ends(start):
    alone = {"nodes": {"front": {}, "web": {"process": True}}, "actors": {"http": {"node": "web"}}}
    session = start(alone)
    with httpx.Client(base_url=urls(session)[0], timeout=60) as http:
        body = {"messages": QUESTION, "stream": True, "max_tokens": 900, "n": 16, "temperature": 1} | ENDLESS
        with pytest.raises(httpx.HTTPError), http.stream("POST", CHAT, json=body) as stream:
            for number, _ in enumerate(stream.iter_lines()):
                if number == 40:
                    (pid,) = (node.pid for node in session.statistics() if node.node == "web")
                    os.kill(pid, signal.SIGKILL)
    while session.scheduler_statistics().num_running or session.pool_statistics().blocks_held:
        pass
    with httpx.Client(base_url=urls(session)[0], timeout=60) as http:  # asked again, and waited for
        assert http.post(CHAT, json={"messages": QUESTION, "max_tokens": 1}).status_code == 200
