"""Clients that leave, that do not read, that are slow or many; and how the server ends."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import signal
import socket
import ssl
import subprocess
import sys
import threading

import httpx
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

import pageant

CHAT = "/v1/chat/completions"
QUESTION = [{"role": "user", "content": "Explain the with statement"}]
LONG = {"messages": QUESTION, "max_tokens": 900, "ignore_eos": True, "temperature": 0}
SHORT = {"messages": QUESTION, "max_tokens": 8, "temperature": 0}


async def until(holds, seconds=30):
    async with asyncio.timeout(seconds):
        while not await asyncio.to_thread(holds):
            pass


def at_rest(session):
    return not (session.scheduler_statistics().num_running or session.pool_statistics().blocks_held)


def address(url):
    host, _, port = url.partition("//")[2].rpartition(":")
    return host, int(port)


def head(body, path=CHAT):
    raw = json.dumps(body).encode()
    return f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(raw)}\r\n\r\n".encode() + raw


@pytest.fixture
def answers_rightly(http, llm):
    """A normal request still gets the right tokens."""
    yield
    right = llm.chat([QUESTION], pageant.SamplingParams(temperature=0.0, max_tokens=8))[0]
    answer = http.post(CHAT, json=SHORT).json()
    assert answer["choices"][0]["message"]["content"] == right.outputs[0].text


@pytest.mark.usefixtures("answers_rightly")
async def test_a_thousand_clients_that_leave_leave_nothing_behind(session, url):
    chance = random.Random(5)
    host, port = address(url)
    places = asyncio.Semaphore(100)
    answered = 0

    async def one(index):
        nonlocal answered
        async with places:
            body = {**LONG, "stream": bool(index % 3), "n": 1 + index % 2, "temperature": 1, "seed": index}
            raw = head(body)
            cut = chance.choice([len(raw), len(raw), len(raw), chance.randrange(1, len(raw))])
            reader, writer = await asyncio.open_connection(host, port)
            writer.write(raw[:cut])
            if cut == len(raw) and body["stream"]:
                for _ in range(chance.choice([0, 0, 1, 5, 20])):
                    await reader.readline()
                answered += 1
            else:
                await asyncio.sleep(chance.random() * 0.02)
            if chance.random() < 0.5:
                writer.transport.abort()
            writer.close()

    await asyncio.gather(*(one(index) for index in range(1000)))
    assert answered > 300
    await until(lambda: at_rest(session))
    assert session.pool_statistics().blocks_held == 0
    assert not session.http_server().num_open and session.http_server().service.idle.is_set()


@pytest.mark.usefixtures("answers_rightly")
def test_a_web_socket_that_closes_takes_its_request_along(session, url):
    with connect(url.replace("http", "ws") + CHAT) as web_socket:
        web_socket.send(json.dumps(LONG))
        for _ in range(3):
            assert "chat.completion.chunk" in web_socket.recv()
    asyncio.run(until(lambda: at_rest(session)))
    assert not session.http_server().num_open


@pytest.mark.usefixtures("answers_rightly")
async def test_a_client_that_does_not_read_is_dropped_and_holds_up_nobody(start, llm):
    session = start(stall_seconds=0.4, keep_alive_seconds=0.1)
    url = session.served_at().split()[-1]
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect(address(url))
    body = LONG | {"stream": True, "n": 8, "temperature": 1, "logprobs": True, "top_logprobs": 20}
    connection.sendall(head(body))
    await until(lambda: session.scheduler_statistics().num_running == 8)
    async with httpx.AsyncClient(base_url=url) as http:
        beside = (await http.post(CHAT, json=SHORT)).json()
    assert beside["usage"]["completion_tokens"] == 8
    await until(lambda: not session.http_server().num_open and session.http_server().service.idle.is_set())
    connection.settimeout(10)
    received = b""
    with connection, contextlib.suppress(ConnectionResetError):
        while part := connection.recv(2**20):
            received += part
    assert received.startswith(b"HTTP/1.1 200") and b"[DONE]" not in received
    await until(lambda: at_rest(session))


@pytest.mark.usefixtures("answers_rightly")
async def test_a_web_socket_that_is_not_read_is_dropped_likewise(start):
    session = start(stall_seconds=0.4, keep_alive_seconds=0.1)
    place = session.served_at().split()[-1]
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect(address(place))
    upgrade = "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13"
    connection.sendall(
        f"GET {CHAT} HTTP/1.1\r\nHost: x\r\n{upgrade}\r\nSec-WebSocket-Key: {'A' * 22}==\r\n\r\n".encode()
    )
    assert said(connection, until=b"\r\n\r\n").startswith(b"HTTP/1.1 101")
    asked = json.dumps(LONG | {"n": 8, "temperature": 1, "logprobs": True, "top_logprobs": 20}).encode()
    connection.sendall(b"\x81\xfe" + len(asked).to_bytes(2, "big") + bytes(4) + asked)  # a masked text
    await until(lambda: session.scheduler_statistics().num_running == 8)
    await until(lambda: not session.http_server().num_open and session.http_server().service.idle.is_set())
    connection.close()
    await until(lambda: at_rest(session))


def test_requests_have_ids_and_can_be_aborted_by_them(session, http):
    named = http.post(CHAT, json=SHORT, headers={"x-request-id": "mine"})
    assert named.headers["x-request-id"] == "mine" and named.json()["id"] == "chatcmpl-mine"
    unnamed = http.post(CHAT, json=SHORT)
    assert unnamed.headers["x-request-id"] == unnamed.json()["id"]
    for name in ("long-1", "chatcmpl-long-1"):
        with http.stream("POST", CHAT, json=LONG | {"stream": True, "request_id": "long-1"}) as stream:
            lines = stream.iter_lines()
            next(lines)
            aborted = http.post("/abort_requests", json={"request_ids": [name, "other"]}).json()
            assert aborted == {"aborted": [name]}
            *_, last, done = (line for line in lines if line)
        assert done == "data: [DONE]"
        assert json.loads(last.removeprefix("data: "))["choices"][0]["finish_reason"] == "abort"
    assert http.post("/abort_requests", json={"request_ids": ["long-1"]}).status_code == 404
    asyncio.run(until(lambda: at_rest(session)))


def test_what_is_more_than_a_server_takes_may_come_back_later(start):
    session = start({"max_num_seqs": 1, "max_waiting_requests": 2}, max_open_requests=4)
    with httpx.Client(base_url=session.served_at().split()[-1], timeout=60) as http:
        codes, retries = [], []

        def one():
            answer = http.post(CHAT, json=LONG | {"max_tokens": 200})
            codes.append(answer.status_code)
            retries.append("retry-after" in answer.headers)

        threads = [threading.Thread(target=one) for _ in range(12)]
        for thread in threads:
            thread.start()
        assert http.get("/health").status_code == 200  # busy is not ill
        for thread in threads:
            thread.join()
        assert set(codes) == {200, 429}
        assert retries == [code == 429 for code in codes]
        assert http.post(CHAT, json=SHORT).status_code == 200


def test_a_hung_engine_is_not_healthy(start):
    session = start(health_seconds=0.3)
    with httpx.Client(base_url=session.served_at().split()[-1], timeout=60) as http:
        assert http.get("/health").status_code == 200
        scheduler = session._cluster.node.cells["scheduler"]
        delivered, scheduler.deliver = scheduler.deliver, lambda envelope: None
        assert http.get("/health").status_code == 503
        assert http.get("/ready").status_code == 200  # its actors are all there
        scheduler.deliver = delivered
        assert http.get("/health").status_code == 200


def test_pages_of_other_origins_may_call_only_if_allowed(http, start):
    asking = {"origin": "https://a.example", "access-control-request-method": "POST"}
    assert "access-control-allow-origin" not in http.options(CHAT, headers=asking).headers
    session = start(allowed_origins=("https://a.example",), api_keys=("secret",))
    with httpx.Client(base_url=session.served_at().split()[-1]) as allowed:
        assert (
            allowed.options(CHAT, headers=asking).headers["access-control-allow-origin"] == asking["origin"]
        )
        other = asking | {"origin": "https://b.example"}
        assert "access-control-allow-origin" not in allowed.options(CHAT, headers=other).headers


def test_pages_of_other_origins_open_no_web_sockets_either(url, start):
    place = url.replace("http", "ws") + CHAT
    with pytest.raises(InvalidStatus) as refused, connect(place, origin="https://a.example"):
        pass
    assert refused.value.response.status_code == 403
    with connect(place, origin=url) as own:  # as some libraries say who are no pages
        own.send(json.dumps(SHORT))
        assert "chat.completion.chunk" in own.recv()
    place = start(allowed_origins=("https://a.example",)).served_at().split()[-1].replace("http", "ws") + CHAT
    with connect(place, origin="https://a.example") as allowed:
        allowed.send(json.dumps(SHORT))
        assert "chat.completion.chunk" in allowed.recv()


FORMS = ("text/plain", "text/plain;charset=UTF-8", "application/x-www-form-urlencoded", "multipart/form-data")


@pytest.mark.parametrize(
    "path", [CHAT, "/v1/completions", "/v1/responses", "/v1/messages", "/abort_requests"]
)
def test_bodies_that_a_page_may_send_without_asking_are_refused(http, path):
    for kind in (*FORMS, "application/octet-stream", "application/jsonp", "json"):
        refused = http.post(path, content=json.dumps(SHORT), headers={"content-type": kind})
        assert refused.status_code == 415, (kind, refused.text)
        assert "application/json" in refused.json()["error"]["message"]
    for origin in ("https://a.example", "null"):  # a page's blob has no type
        assert http.post(path, content=json.dumps(SHORT), headers={"origin": origin}).status_code == 415


def test_json_is_taken_under_its_names_and_without_one_from_who_is_no_page(http, start):
    for kind in ("application/json", "Application/JSON; charset=utf-8", "application/problem+json"):
        answer = http.post(CHAT, content=json.dumps(SHORT), headers={"content-type": kind})
        assert answer.status_code == 200, (kind, answer.text)
    plain = http.build_request("POST", CHAT, content=json.dumps(SHORT))
    assert "content-type" not in plain.headers and http.send(plain).status_code == 200
    session = start(allowed_origins=("https://a.example",))
    with httpx.Client(base_url=session.served_at().split()[-1], timeout=60) as allowed:
        origin = {"origin": "https://a.example"}
        assert allowed.post(CHAT, content=json.dumps(SHORT), headers=origin).status_code == 200
        assert (
            allowed.post(CHAT, content="{}", headers=origin | {"content-type": FORMS[0]}).status_code == 415
        )


def test_connections_can_be_encrypted(start, tmp_path):
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=localhost",
    ]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True)
    url = start(ssl_certfile=str(certificate), ssl_keyfile=str(key)).served_at().split()[-1]
    assert url.startswith("https://")
    with httpx.Client(base_url=url, verify=ssl.create_default_context(cafile=certificate)) as http:
        assert http.post(CHAT, json=SHORT).status_code == 200


def test_sigterm_lets_open_requests_end_within_the_time_given():
    command = ["serve", "--port", "0", "--drain-seconds", "0.5", "--set", "threads=1", "--placement", "one"]
    server = subprocess.Popen([sys.executable, "-m", "pageant", *command], stderr=subprocess.PIPE, text=True)
    try:
        url = next(line for line in server.stderr if "serving" in line).split()[-1]
        endless = LONG | {"stream": True, "max_tokens": 900, "n": 100, "temperature": 1}
        with httpx.stream("POST", url + CHAT, json=endless, timeout=60) as stream:
            lines = stream.iter_lines()
            next(lines)
            server.send_signal(signal.SIGTERM)
            rest = list(lines)  # it is ended, and says so
        assert server.wait(30) == 0
        assert "unavailable" in rest[-4] and rest[-2] == "data: [DONE]"
    finally:
        server.kill()
        server.wait()
        server.stderr.close()


def said(connection, until=None):
    """All that the server says, until it closes or has said that."""
    received = b""
    while (until is None or until not in received) and (part := connection.recv(65_536)):
        received += part
    return received


def test_who_is_one_too_many_is_told_to_come_back(start):
    url = start(limit_concurrency=8).served_at().split()[-1]
    held = [socket.create_connection(address(url)) for _ in range(8)]
    try:
        with socket.create_connection(address(url), timeout=30) as late:
            late.sendall(head(SHORT))
            status, _, rest = said(late).partition(b"\r\n")
        fields, _, body = rest.partition(b"\r\n\r\n")
        assert status.split()[1] == b"503" and b"retry-after: 1" in fields.lower()
        assert json.loads(body)["error"]["code"] == "overloaded"
        with pytest.raises(InvalidStatus) as refused, connect(url.replace("http", "ws") + CHAT):
            pass
        assert refused.value.response.status_code == 503
    finally:
        for connection in held:
            connection.close()
    with httpx.Client(base_url=url, timeout=60) as http:
        while (answer := http.post(CHAT, json=SHORT)).status_code == 503:
            pass
        assert answer.status_code == 200


def test_a_head_or_a_body_that_does_not_come_is_not_waited_for(url, monkeypatch, http, answers_rightly):
    monkeypatch.setattr("pageant.actors.http.connection.HEAD_SECONDS_MAX", 0.2)
    monkeypatch.setattr("pageant.actors.http.connection.BODY_SECONDS_MAX", 0.3)
    half = head(SHORT)[:-5]
    for begun in (b"", b"POST", half):
        with socket.create_connection(address(url), timeout=30) as connection:
            connection.sendall(begun)
            with contextlib.suppress(ConnectionResetError):
                assert said(connection) == b""
    with socket.create_connection(address(url), timeout=30) as slow:  # but an answer has its time
        slow.sendall(head(LONG | {"stream": True}))
        assert b"[DONE]" in said(slow, until=b"[DONE]")


def test_what_is_no_http_is_refused_in_the_same_shape(url):
    with socket.create_connection(address(url), timeout=30) as connection:
        connection.sendall(b"HELLO\r\n\r\n")
        answer = said(connection)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["type"] == "invalid_request_error"


def test_every_route_but_health_and_ready_asks_for_a_key(start):
    url = start(api_keys=("right", "also")).served_at().split()[-1]
    with httpx.Client(base_url=url, timeout=60) as http:
        key = {"authorization": "Bearer right"}
        paths = http.get("/openapi.json", headers=key).json()["paths"]
        assert len(paths) > 12
        for path, methods in paths.items():
            for method in methods:
                answer = http.request(method, path.format(name="x"), json={})
                assert (answer.status_code == 401) == (path not in ("/health", "/ready", "/ping")), (
                    method,
                    path,
                )
        assert http.get("/openapi.json").status_code == http.get("/statistics").status_code == 401
        assert http.get("/version", headers={"x-api-key": "also"}).status_code == 200
    place = url.replace("http", "ws") + CHAT
    with pytest.raises(InvalidStatus) as refused, connect(place):
        pass
    assert refused.value.response.status_code in (401, 403)
    with connect(place, additional_headers=key) as socket_:
        socket_.send(json.dumps(SHORT))
        assert "chat.completion.chunk" in socket_.recv()


def test_a_client_that_leaves_within_its_body_is_one_line_in_the_log(url, http, caplog):
    with caplog.at_level("INFO", "pageant.http"):
        with socket.create_connection(address(url), timeout=30) as half:
            half.sendall(head(LONG)[:-10])
            http.get("/version")  # by now the request has begun
        while not (records := [one for one in caplog.records if one.name == "pageant.http"]):
            http.get("/version")
    (record,) = records
    assert record.getMessage() == f"POST {CHAT!r}: the client left" and record.exc_info is None
