"""Routes that kill an actor's process: which actors they offer, and what they do with each."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
from litestar.testing import TestClient

from pageant.actors.http import killing
from pageant.actors.http.app import make_app
from pageant.actors.http.tenants import Keys
from pageant.protocol.supervision import ActorEntry, Directory, NodeEntry


def _actor(name: str, node: str, *, up: bool = True) -> ActorEntry:
    return ActorEntry(name=name, node=node, incarnation=1, up=up)


@pytest.fixture
def child():
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.wait()
    assert process.stdin is not None
    process.stdin.close()


def _client(pid: int) -> TestClient[Any]:
    nodes = {"front": os.getpid(), "device": pid, "root": pid, "afar": pid}
    endpoints = {"afar": "tcp://10.0.0.2:4000"}
    entries = (
        NodeEntry(name=name, incarnation=1, endpoint=endpoints.get(name, f"ipc://{name}"), pid=process)
        for name, process in nodes.items()
    )
    actors = (
        _actor("scheduler", "front"),
        _actor("executor/0", "device", up=False),
        _actor("grammar", "device"),
        _actor("blocks", "root"),
        _actor("executor/1", "afar"),
    )
    seen = SimpleNamespace(
        nodes={name: SimpleNamespace(actors={"supervisor": 0} if name == "root" else {}) for name in nodes}
    )

    async def directory() -> Directory:
        return Directory(version=1, nodes=tuple(entries), actors=actors)

    async def observe() -> Any:
        return seen

    entries = tuple(entries)
    operators: Any = SimpleNamespace(check=lambda: None)
    routes = killing.routes(operators, directory, observe)
    return TestClient(
        make_app(routes, keys=Keys(()), allowed_origins=(), body_bytes_max=1000, errors=Counter())
    )


def test_an_actor_that_starts_is_offered_as_others_of_its_process_are(child):
    with _client(child.pid) as client:
        together = ["executor/0", "grammar"]
        assert client.get("/actors/killable").json() == {"actors": {name: together for name in together}}
        killed = client.post("/actors/kill?name=executor/0")
        assert killed.json() == {"node": "device", "pid": child.pid, "actors": together}
        assert child.wait() == -9


def test_what_cannot_be_killed_is_said_to_be_so(child):
    with _client(child.pid) as client:
        for name in ("scheduler", "blocks", "executor/1", "nobody"):
            answer = client.post(f"/actors/kill?name={name}")
            assert answer.status_code == 400 and "executor/0" in answer.text, name
        assert child.poll() is None
        child.kill()
        child.wait()
        ended = client.post("/actors/kill?name=grammar")
        assert ended.status_code == 400
        assert f"grammar cannot be killed: its process {child.pid} has just ended" in ended.text
