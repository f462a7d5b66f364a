"""Keys: a node with the topology's joins it over TCP; others are turned away, and nothing of them is heard."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest
import zmq
from runtime_players import Ping

from pageant.actors.runtime.resolving import resolve
from pageant.actors.runtime.topology import parse
from pageant.actors.runtime.transport import router, zeromq
from pageant.actors.runtime.transport.errors import LinkRefused, NoAnswer
from pageant.actors.runtime.transport.keys import make_keys, read_keys, write_keys
from pageant.actors.runtime.transport.zeromq import ZmqLink
from pageant.protocol.errors import TopologyError

from .conftest import CAST

ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
SECONDS = 20.0


class Ears:
    """A receiver that keeps what it is given."""

    def __init__(self) -> None:
        self.received: list[list[bytes]] = []
        self.news = asyncio.Event()

    def receive(self, node, frames) -> None:
        self.received.append([bytes(frame) for frame in frames])
        self.news.set()

    def refuse(self, node: str, reason: str) -> None: ...
    def met(self, node: str) -> None: ...
    def replaced(self, node: str) -> None: ...
    def lost(self, node: str, envelopes: int) -> None: ...


@pytest.fixture
async def link(monkeypatch):
    monkeypatch.setattr(router, "LINGER_MS", 0)
    monkeypatch.setattr(zeromq, "HANDSHAKE_SECONDS", 0.7)
    made: list[ZmqLink] = []

    def make(name, keys, receiver=None, endpoint="tcp://127.0.0.1:*") -> ZmqLink:
        made.append(ZmqLink(name, 1, endpoint, receiver or Ears(), "1", keys))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def key_file(tmp_path) -> Path:
    write_keys(tmp_path / "pageant.key", make_keys())
    return tmp_path / "pageant.key"


async def test_nodes_with_the_same_key_hear_each_other_in_both_directions(link):
    keys, ears = make_keys(), Ears()
    root, other = link("root", keys, ears), link("b", keys, ears)
    await other.connect("root", 1, root.endpoint)
    assert other.send("root", [b"one", b"x" * 100_000]) and root.send("b", [b"two", b""])
    async with asyncio.timeout(SECONDS):
        while len(ears.received) < 2:
            ears.news.clear()
            await ears.news.wait()
    assert sorted(frames[0] for frames in ears.received) == [b"one", b"two"]


@pytest.mark.parametrize("keys", [make_keys(), None], ids=["another key", "no key"])
async def test_a_node_with_another_key_or_none_is_turned_away(link, keys, caplog):
    root = link("root", make_keys())
    with pytest.raises(NoAnswer, match="its key may be another" if keys else r"did not answer within 0.7 s$"):
        await link("b", keys).connect("root", 1, root.endpoint)
    assert not root.send("b", [b"", b""])
    told = [record.getMessage() for record in caplog.records]
    assert told == [
        f"root: a peer at {root.endpoint} was turned away: its key is another, it has none, or it is no node"
    ]


async def test_knowing_the_public_key_is_not_enough(link):
    """Whoever has seen it can speak to the socket, but is not let in."""
    keys = make_keys()
    root = link("root", keys)
    context = zmq.Context()
    stranger = context.socket(zmq.DEALER)
    stranger.curve_publickey, stranger.curve_secretkey = zmq.curve_keypair()
    stranger.curve_serverkey = keys.public.encode()
    stranger.connect(root.endpoint)
    try:
        async with asyncio.timeout(SECONDS):
            while not root._router.gatekeeper.refused:  # noqa: ASYNC110 - ZeroMQ's own thread says when
                await asyncio.sleep(0)
    finally:
        context.destroy(linger=0)


async def test_a_socket_that_other_hosts_reach_needs_a_key(link):
    with pytest.raises(LinkRefused, match="pageant keys"):
        link("root", None, endpoint="tcp://0.0.0.0:*")
    assert link("root", make_keys(), endpoint="tcp://0.0.0.0:*").endpoint.startswith("tcp://0.0.0.0:")


def test_a_host_in_a_topology_needs_a_key(key_file):
    far = {"nodes": {"front": {}, "far": {"host": "10.1.2.3"}}, "listen": "tcp://10.1.2.1:5700"}
    for key in ("nodes", "listen"):
        with pytest.raises(TopologyError, match="keys"):
            resolve(parse({key: far[key]}), CAST)
    keys = {"keys": str(key_file)}
    assert resolve(parse(far | keys), CAST).nodes[1].joins
    with pytest.raises(TopologyError, match=r"^listen: .*nodes.far is on host '10.1.2.3'"):
        resolve(parse({"nodes": far["nodes"]} | keys), CAST)


@pytest.mark.parametrize("change", ["missing", "open", "garbage", "mismatch"])
def test_a_key_file_that_is_none_is_refused_by_name(key_file, change):
    match change:
        case "missing":
            key_file.unlink()
        case "open":
            key_file.chmod(0o644)
        case "garbage":
            key_file.write_bytes(b"\x00key")
        case "mismatch":
            other = make_keys()
            key_file.write_text(f'{{"public": "{other.public}", "secret": "{make_keys().secret}"}}')
    with pytest.raises(TopologyError, match=key_file.name):
        read_keys(key_file)


def test_a_key_is_never_written_over(key_file):
    before = key_file.read_bytes()
    with pytest.raises(FileExistsError):
        write_keys(key_file, make_keys())
    assert key_file.read_bytes() == before and key_file.stat().st_mode & 0o077 == 0


async def test_children_and_guests_speak_with_the_topologys_key(start, key_file):
    topology = {
        "nodes": {"front": {}, "child": {"process": True}, "guest": {"host": "127.0.0.1"}},
        "listen": "tcp://127.0.0.1:*",
        "transport": "tcp",
        "keys": str(key_file),
        "actors": {"echo": {"node": "guest"}, "other": {"class": "runtime_players:Echo", "node": "child"}},
    }
    cluster = await start(topology, wait=False)
    command = [sys.executable, "-m", "pageant.actors.runtime.process", "--detached", "--name", "guest"]
    guest = await asyncio.create_subprocess_exec(
        *command,
        *("--join", cluster.endpoint or "", "--keys", str(key_file)),
        env=ENVIRONMENT,
        stdin=subprocess.DEVNULL,
    )
    async for _ in cluster.startup():
        pass
    for actor in ("echo", "other"):
        assert (await cluster.node.ask(actor, Ping(value=3), SECONDS)).value == 3
    await cluster.stop()
    assert await guest.wait() == 0
