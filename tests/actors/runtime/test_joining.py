"""Nodes that are started by hand, nodes of another version, strangers at the socket, orphans."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import zmq
from runtime_players import GetLog, Ping, Until, pid_of

from pageant.actors.runtime.cluster import Cluster
from pageant.actors.runtime.process import _run, parse_arguments
from pageant.actors.runtime.transport import router, zeromq
from pageant.actors.runtime.transport.errors import LinkRefused, NoAnswer
from pageant.actors.runtime.transport.zeromq import ZmqLink
from pageant.protocol.codec import Codec
from pageant.protocol.envelope import Header, Mode, encode_header
from pageant.protocol.errors import PeerGone
from pageant.protocol.handshake import Hello, fingerprint

SECONDS = 20.0
GUEST = {
    "nodes": {"front": {}, "b": {"host": "127.0.0.1"}},
    "listen": "tcp://127.0.0.1:*",
    "actors": {"echo": {"node": "b"}, "watcher": {"class": "runtime_players:Watcher"}},
}
ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}


async def join(cluster: Cluster, name: str, *more: str, **keywords) -> asyncio.subprocess.Process:
    arguments = ["--join", cluster.endpoint or "", "--name", name, "--detached", *more]
    command = [sys.executable, "-m", "pageant.actors.runtime.process", *arguments]
    return await asyncio.create_subprocess_exec(
        *command, env=ENVIRONMENT, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, **keywords
    )


async def ended(process: asyncio.subprocess.Process) -> tuple[int, str]:
    async with asyncio.timeout(SECONDS):
        _, errors = await process.communicate()
    return process.returncode or 0, errors.decode()


def life_of(cluster: Cluster) -> str:
    """A guest tells whoever started it that it joined, and that the topology ended."""
    return f"pageant node b: joined the topology at {cluster.endpoint}\npageant node b: left the topology\n"


async def test_a_node_that_is_started_by_hand_joins_serves_and_ends_with_the_topology(start):
    cluster = await start(GUEST, wait=False)
    guest = await join(cluster, "b")
    async for _ in cluster.startup():
        pass
    assert (await cluster.node.ask("echo", Ping(value=3), SECONDS)).value == 3
    await cluster.stop()
    assert await ended(guest) == (0, life_of(cluster))


async def test_a_guest_that_comes_again_replaces_its_former_life(start):
    cluster = await start(GUEST, wait=False)
    first = await join(cluster, "b")
    async for _ in cluster.startup():
        pass
    first.kill()
    await ended(first)
    second = await join(cluster, "b")
    await cluster.node.ask("watcher", Until(event="up echo#2"), SECONDS)
    assert (await cluster.node.ask("echo", GetLog(), SECONDS)).incarnation == 2
    await cluster.stop()
    assert await ended(second) == (0, life_of(cluster))


async def test_what_is_waited_for_is_told_with_the_command_that_starts_it(start, monkeypatch):
    told: asyncio.Queue[str] = asyncio.Queue()
    monkeypatch.setattr("pageant.actors.runtime.cluster.NOTICE_SECONDS", 0.0)
    monkeypatch.setattr(
        "pageant.actors.runtime.cluster.log.warning", lambda text, *words: told.put_nowait(text % words)
    )
    cluster = await start(GUEST, wait=False)
    starting = asyncio.create_task(anext(aiter(cluster.startup()), None))
    async with asyncio.timeout(SECONDS):
        assert await told.get() == f"waiting for node b: pageant node --join {cluster.endpoint} --name b"
    starting.cancel()


async def test_a_guest_whose_connection_broke_joins_again(start):
    cluster = await start(GUEST, wait=False)
    port = int((cluster.endpoint or "").rpartition(":")[2])
    open_writers: list[asyncio.StreamWriter] = []

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, onward = await asyncio.open_connection("127.0.0.1", port)
        open_writers.extend((writer, onward))
        await asyncio.gather(carry(reader, onward), carry(there, writer))

    between = await asyncio.start_server(accept, "127.0.0.1", 0)
    address = f"tcp://127.0.0.1:{between.sockets[0].getsockname()[1]}"
    guest = await join(cluster, "b", "--join", address)
    async for _ in cluster.startup():
        pass
    for writer in open_writers:
        writer.transport.abort()
    await cluster.node.ask("watcher", Until(event="up echo#2"), SECONDS)
    assert (await cluster.node.ask("echo", GetLog(), SECONDS)).incarnation == 2
    await cluster.stop()
    assert (await ended(guest))[0] == 0
    between.close()


async def test_a_guest_that_nobody_expects_is_told_so(start):
    cluster = await start(GUEST, wait=False)
    code, errors = await ended(await join(cluster, "c"))
    assert code == 1
    assert errors.strip() == "pageant node c: no node called 'c' is expected to join front"


@pytest.mark.parametrize("address", ["foo", "tcp://", "tcp://10.0.0.1", "udp://10.0.0.1:5700", ""])
async def test_an_address_that_no_node_can_have_is_named_at_once(capsys, address):
    options = parse_arguments(["--join", address, "--name", "b", "--detached"])
    assert await _run(options) == 1
    assert capsys.readouterr().err == (
        f"pageant node b: --join: found {address!r}; expected an address such as tcp://10.0.0.1:5700\n"
    )


class Deaf:
    """A receiver that keeps what it is given."""

    def __init__(self) -> None:
        self.received: list[tuple[str, list[bytes]]] = []
        self.refusals: list[str] = []
        self.news = asyncio.Event()

    def receive(self, node, frames) -> None:
        self.received.append((node, [bytes(frame) for frame in frames]))
        self.news.set()

    def refuse(self, node: str, reason: str) -> None:
        self.refusals.append(reason)
        self.news.set()

    def met(self, node: str) -> None: ...

    def replaced(self, node: str) -> None:
        self.refusals.append(f"{node} replaced")

    def lost(self, node: str, envelopes: int) -> None: ...

    async def next(self) -> None:
        async with asyncio.timeout(SECONDS):
            await self.news.wait()
        self.news.clear()


@pytest.fixture
async def links(monkeypatch):
    monkeypatch.setattr(router, "LINGER_MS", 0)
    made: list[ZmqLink] = []

    def make(name: str, incarnation: int = 1, receiver: Deaf | None = None) -> ZmqLink:
        made.append(ZmqLink(name, incarnation, "tcp://127.0.0.1:*", receiver or Deaf(), f"1.{len(made)}"))
        return made[-1]

    yield make
    for link in made:
        link.close()


async def test_another_protocol_is_refused_with_both_versions_named(links, monkeypatch):
    receiver = Deaf()
    root, other = links("root", 1, receiver), links("b")
    answers = iter(["other-fingerprint"])
    monkeypatch.setattr(zeromq, "fingerprint", lambda: next(answers, "our-fingerprint"))
    with pytest.raises(LinkRefused) as caught:
        await other.connect("root", 1, root.endpoint)
    for part in ("protocol mismatch", "1.1 (other-fingerprint)", "1.0 (our-fingerprint)", "b", "root"):
        assert part in str(caught.value)
    assert receiver.refusals == [str(caught.value)]
    assert not root.send("b", [b"", b""])


async def test_what_is_said_right_after_the_welcome_is_heard(links):
    class Eager(Deaf):
        def met(self, node) -> None:
            for number in range(3):
                assert root.send(node, [b"header", b"body", bytes([number])])

    root = links("root", 1, Eager())
    for number in range(20):  # it depends on how things fall
        receiver = Deaf()
        await links(f"b{number}", 1, receiver).connect("root", 1, root.endpoint)
        while len(receiver.received) < 3:
            await receiver.next()
        assert [bytes(frames[2]) for _, frames in receiver.received] == [b"\0", b"\1", b"\2"]
        assert receiver.refusals == []


async def test_linked_nodes_hear_each_other(links):
    receiver = Deaf()
    root, other = links("root", 1, receiver), links("b")
    await other.connect("root", 1, root.endpoint)
    assert other.send("root", [b"header", b"body", b"x" * 100_000])
    await receiver.next()
    assert receiver.received == [("b", [b"header", b"body", b"x" * 100_000])]
    assert not other.send("nobody", [b"", b""])


async def test_a_new_life_replaces_the_old_and_an_older_one_is_refused(links):
    receiver = Deaf()
    root = links("root", 1, receiver)
    await links("b", 1).connect("root", 1, root.endpoint)
    await links("b", 3).connect("root", 1, root.endpoint)
    assert receiver.refusals == ["b replaced"]
    with pytest.raises(LinkRefused, match=r"b#2 has been replaced by #3"):
        await links("b", 2).connect("root", 1, root.endpoint)
    assert not root.forget("b", 1) and root.send("b", [b"", b""])
    assert root.forget("b", 3) and not root.send("b", [b"", b""])


async def test_nobody_there_is_no_answer_and_may_be_tried_again(links, monkeypatch):
    monkeypatch.setattr(zeromq, "HANDSHAKE_SECONDS", 0.02)
    link = links("b")
    for _ in range(2):  # ZeroMQ would abort the process if the connection had the same name
        with pytest.raises(NoAnswer, match="did not answer within"):
            await link.connect("root", 1, "tcp://127.0.0.1:9")


class Cable:
    """Cable between a node and whoever connects to it."""

    def __init__(self, endpoint: str) -> None:
        self._port = int(endpoint.rpartition(":")[2])
        self._ends: list[asyncio.StreamWriter] = []
        self._tasks: list[asyncio.Task[None]] = []

    async def plug_in(self) -> str:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return f"tcp://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        to_node, from_node = await asyncio.open_connection("127.0.0.1", self._port)
        self._ends += [writer, from_node]
        both = ((reader, from_node), (to_node, writer))
        self._tasks += [asyncio.create_task(self._carry(*ends)) for ends in both]

    async def _carry(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await source.read(65536):
                target.write(data)

    def tear(self) -> None:
        ends, self._ends = self._ends, []
        for end in ends:
            end.transport.abort()

    async def remove(self) -> None:
        self._server.close()
        self.tear()
        await asyncio.wait(self._tasks)


async def test_whoever_made_a_connection_is_told_that_it_broke_once_it_is_there_again(links):
    receiver = Deaf()
    root, link = links("root", 1, receiver), links("b")
    cable, told = Cable(root.endpoint), asyncio.Event()
    broken: list[tuple[str, int]] = []

    def note(node: str, incarnation: int) -> None:
        broken.append((node, incarnation))
        told.set()

    link.on_broken = note
    await link.connect("root", 1, await cable.plug_in())
    assert link.send("root", [b"header", b"body"])
    await receiver.next()
    assert not broken
    cable.tear()
    async with asyncio.timeout(SECONDS):
        await told.wait()
    assert broken == [("root", 1)]
    link.close()
    await cable.remove()


async def test_a_peer_that_ended_has_not_broken_its_connection(links):
    root, link = links("root"), links("b")
    broken: list[str] = []
    link.on_broken = lambda node, incarnation: broken.append(node)
    await link.connect("root", 1, root.endpoint)
    root.close()
    assert link.forget("root", 1)
    again = links("root", 2)
    await link.connect("root", 2, again.endpoint)
    assert not broken


async def test_a_stranger_who_took_the_name_of_a_peer_is_in_nobodys_way(links):
    receiver = Deaf()
    root, link = links("root"), links("b", 1, receiver)
    context = zmq.Context()
    dealer = context.socket(zmq.DEALER)
    dealer.setsockopt(zmq.ROUTING_ID, b"root#1")
    dealer.connect(link.endpoint)
    dealer.send_multipart([b"let me", b"in"])
    await receiver.next()
    assert (await link.connect("root", 1, root.endpoint)).node == "root"
    context.destroy(linger=0)


async def test_a_link_that_closes_ends_whoever_waits_for_it(links):
    link = links("b")
    waiting = asyncio.create_task(link.connect("root", 1, "tcp://127.0.0.1:9"))
    await asyncio.sleep(0)
    link.close()
    with pytest.raises(LinkRefused, match="stopped"):
        await waiting


@pytest.mark.parametrize(
    "endpoint",
    ["tcp://0.0.0.0:5555", "tcp://*:*", "tcp://192.168.1.1:1", "udp://127.0.0.1:1", "ipc://", "x", ""],
)
async def test_a_link_listens_on_this_host_only(endpoint):
    with pytest.raises(LinkRefused, match="pageant keys"):
        ZmqLink("b", 1, endpoint, Deaf(), "1")


async def test_one_peer_that_does_not_read_holds_up_no_other(links, monkeypatch):
    monkeypatch.setattr(router, "HIGH_WATER_MARK", 10)
    receiver = Deaf()
    root, good = links("root"), links("good", 1, receiver)
    stuck = links("stuck")
    for link in (good, stuck):
        await link.connect("root", 1, root.endpoint)
    stuck._loop.remove_reader(stuck._router._descriptor)
    frame = os.urandom(60_000)
    for _ in range(2000):
        assert root.send("stuck", [b"h", b"b", frame])
        if root._router._held:
            break
    assert list(root._router._held) == [root._identities["stuck"]]
    assert root.send("good", [b"h", b"through"])
    await receiver.next()
    assert receiver.received == [("root", [b"h", b"through"])]


async def test_a_receiver_that_raises_does_not_end_the_pump(links, caplog):
    class Clumsy(Deaf):
        def receive(self, node, frames) -> None:
            super().receive(node, frames)
            if len(self.received) == 1:
                raise ValueError("our own bug")

    receiver = Clumsy()
    root, other = links("root", 1, receiver), links("b")
    await other.connect("root", 1, root.endpoint)
    for text in (b"1", b"2", b"3"):
        other.send("root", [b"h", text])
    while len(receiver.received) < 3:
        await receiver.next()
    assert receiver.refusals == ["it could not be taken: see the log"] and "our own bug" in caplog.text


def hello(**changes) -> list[bytes]:
    fields = {"node": "b", "incarnation": 1, "version": "1", "fingerprint": fingerprint(), "endpoint": ""}
    body = Codec().encode(Hello(**(fields | changes)))[0]
    return [encode_header(Header(Mode.LINK, "Hello", "", "b")), body]


TELL = Header(Mode.TELL, "Note", "echo", "node/b")
STRANGE = [
    [b""],
    [b"garbage"],
    [b"garbage", b"garbage"],
    [b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff"],
    [encode_header(TELL), b"\x81"],
    [encode_header(Header(Mode.LINK, "Hello", "", "")), b"\xc1"],
    [encode_header(Header(Mode.LINK, "Ping", "", "")), b"\x81\xa4type\xa4Ping"],
    [encode_header(Header(Mode.LINK, "NoSuchKind", "", "")), b"\x80"],
    hello(),  # says that it is b#1, which its connection is not
    hello(incarnation=-1),
    hello(node="front"),
    [b"x"] * 6000,
]


async def test_strangers_at_the_socket_are_refused_counted_told_of_once_and_do_no_harm(start, caplog):
    cluster = await start(GUEST, wait=False)
    guest = await join(cluster, "b")
    async for _ in cluster.startup():
        pass
    remote = cluster.node.remote
    context = zmq.Context()
    dealer = context.socket(zmq.DEALER)
    dealer.setsockopt(zmq.LINGER, 0)
    dealer.connect(cluster.endpoint or "")
    for frames in STRANGE:
        dealer.send_multipart(frames)
    async with asyncio.timeout(SECONDS):
        while remote.refused < len(STRANGE):
            assert (await cluster.node.ask("echo", Ping(value=1), SECONDS)).value == 1
    address = ("127.0.0.1", int((cluster.endpoint or "").rpartition(":")[2]))
    for garbage in (
        b"",
        b"GET / HTTP/1.1\r\n\r\n",
        os.urandom(4096),
        b"\xff" + b"\0" * 8 + b"\x7f",
        b"\xff" * 100,
    ):
        with socket.create_connection(address) as raw:
            raw.sendall(garbage)
    assert (await cluster.node.ask("echo", Ping(value=2), SECONDS)).value == 2
    context.destroy(linger=0)
    assert (await cluster.statistics())[0].refused >= len(STRANGE)  # ZeroMQ takes some raw bytes for frames
    told = [record.getMessage() for record in caplog.records if record.name == "pageant.link"]
    assert sum(line.startswith("front refused what came from 127.0.0.1: ") for line in told) == 1
    assert len(told) < len(STRANGE)
    await cluster.stop()
    assert await ended(guest) == (0, life_of(cluster))


PARENT = """
import asyncio, sys
from pageant.actors.runtime.cluster import Cluster
from pageant.actors.runtime.resolving import Cast, resolve
from pageant.actors.runtime.topology import parse

async def main():
    cast = Cast({"echo": "runtime_players:" + sys.argv[1]}, frozenset(), frozenset())
    cluster = Cluster(resolve(parse({"placement": "each", "actors": {"echo": {"count": 2}}}), cast))
    await cluster.start()
    if sys.argv[1] == "Echo":
        async for _ in cluster.startup():
            pass
    print("up", cluster._folder, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.mark.parametrize("actor", ["Echo", "Slow", "Stuck"])
def test_no_process_outlives_a_parent_that_is_killed(actor):
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, actor], env=ENVIRONMENT, stdout=subprocess.PIPE, text=True
    )
    with parent:
        assert parent.stdout is not None
        word, folder = parent.stdout.readline().split()
        while len(children := psutil.Process(parent.pid).children(recursive=True)) < 2:
            pass  # they are being launched
        parent.kill()
    assert word == "up" and len(children) == 2
    _, alive = psutil.wait_procs(children, timeout=SECONDS)
    assert alive == []
    for left in Path(folder).glob("*"):  # a killed parent cannot clean up
        left.unlink()
    Path(folder).rmdir()


async def test_a_guest_that_stops_is_replaced_and_when_it_wakes_nothing_of_it_is_believed(start):
    actors = GUEST["actors"] | {"echo": {"class": "runtime_players:Talker", "node": "b"}}
    terms = {"heartbeat_seconds": 0.1, "suspicion_seconds": 0.5}
    cluster = await start({**GUEST, "actors": actors, **terms}, wait=False)
    first = await join(cluster, "b", "--rejoin-seconds", "0")
    async for _ in cluster.startup():
        pass
    node = cluster.node
    await node.ask("watcher", Until(event="up echo#1"), SECONDS)
    first.send_signal(signal.SIGSTOP)
    asked = asyncio.create_task(node.ask("echo", Ping(value=1), SECONDS))  # which it will find when it wakes
    second = await join(cluster, "b")
    assert b"node b waits: another b is there, or has not been given up yet" in await second.stderr.readline()
    await node.ask("watcher", Until(event="down echo#1"), SECONDS)
    with pytest.raises(PeerGone):
        await asked
    await node.ask("watcher", Until(event="up echo#2"), SECONDS)
    refused = node.remote.refused
    first.send_signal(signal.SIGCONT)
    code, errors = await ended(first)
    assert code == 1 and "has not heard of the root in time" in errors
    await node.ask("watcher", Until(event="life 2"), SECONDS)
    assert node.remote.refused > refused, "it said something"
    events = (await node.ask("watcher", GetLog(), SECONDS)).events
    heard = [event for event, _ in itertools.groupby(events)]
    assert heard == ["up echo#1", "life 1", "down echo#1", "up echo#2", "life 2"]
    await cluster.stop()
    assert await ended(second) == (0, life_of(cluster))


async def test_a_guest_whose_lease_is_over_comes_back_as_a_new_incarnation_with_nothing_of_the_old(start):
    terms = {"heartbeat_seconds": 0.1, "suspicion_seconds": 0.5}
    cluster = await start({**GUEST, **terms}, wait=False)
    guest = await join(cluster, "b")
    async for _ in cluster.startup():
        pass
    node = cluster.node
    await node.ask("echo", Ping(value=1), SECONDS)
    for life in (2, 3):
        guest.send_signal(signal.SIGSTOP)
        await node.ask("watcher", Until(event=f"down echo#{life - 1}"), SECONDS)
        guest.send_signal(signal.SIGCONT)
        await node.ask("watcher", Until(event=f"up echo#{life}"), SECONDS)
        assert pid_of(cluster, "b") == guest.pid
        assert (await node.ask("echo", GetLog(), SECONDS)).incarnation == life
    nodes = cluster.supervision.directory().nodes
    assert [entry.incarnation for entry in nodes if entry.name == "b"] == [3]
    assert (await node.ask("echo", Ping(value=1), SECONDS)).value == 1
    await cluster.stop()
    code, errors = await ended(guest)
    assert code == 0 and errors.count("pageant node b: its lease is over; it joins again") == 2


async def test_a_guest_that_does_not_find_the_topology_again_says_so_and_ends(start):
    terms = {"heartbeat_seconds": 0.1, "suspicion_seconds": 0.5}
    cluster = await start({**GUEST, **terms}, wait=False)
    guest = await join(cluster, "b", "--rejoin-seconds", "0.5")
    async for _ in cluster.startup():
        pass
    guest.send_signal(signal.SIGSTOP)
    await cluster.node.ask("watcher", Until(event="down echo#1"), SECONDS)
    await cluster.stop()
    guest.send_signal(signal.SIGCONT)
    code, errors = await ended(guest)
    lines = [line for line in errors.splitlines() if line.startswith("pageant node b")]
    joined, lapsed, refused = lines
    assert code == 1 and joined == f"pageant node b: joined the topology at {cluster.endpoint}"
    assert lapsed.endswith("its lease is over; it joins again")
    assert refused.endswith("did not answer within 0.5 s") and "Traceback" not in errors


async def test_a_guest_comes_back_to_a_topology_that_was_started_again(start):
    terms = {"heartbeat_seconds": 0.1, "suspicion_seconds": 0.5}
    cluster = await start({**GUEST, **terms}, wait=False)
    guest = await join(cluster, "b")
    async for _ in cluster.startup():
        pass
    guest.send_signal(signal.SIGSTOP)
    await cluster.node.ask("watcher", Until(event="down echo#1"), SECONDS)
    await cluster.stop()
    again = await start({**GUEST, **terms, "listen": cluster.endpoint}, wait=False)
    guest.send_signal(signal.SIGCONT)
    async for _ in again.startup():
        pass
    assert (await again.node.ask("echo", Ping(value=2), SECONDS)).value == 2
    await again.stop()
    assert (await ended(guest))[0] == 0


async def test_a_process_that_stops_is_killed_and_replaced(start):
    watcher = {"watcher": {"class": "runtime_players:Watcher"}}
    terms = {"heartbeat_seconds": 0.1, "suspicion_seconds": 1.0}
    cluster = await start({"placement": "each", "actors": watcher, **terms})
    node = cluster.node
    await node.ask("watcher", Until(event="up echo#1"), SECONDS)
    process = psutil.Process(pid_of(cluster, "echo"))
    process.send_signal(signal.SIGSTOP)
    await node.ask("watcher", Until(event="up echo#2"), SECONDS)
    assert not psutil.pid_exists(process.pid) or process.status() == psutil.STATUS_ZOMBIE
    assert (await node.ask("echo", GetLog(), SECONDS)).incarnation == 2


async def test_a_process_that_hangs_holds_up_the_restart_of_no_other(start):
    other = {"other": {"class": "runtime_players:Echo"}, "watcher": {"class": "runtime_players:Watcher"}}
    cluster = await start({"placement": "each", "actors": other, "suspicion_seconds": 600.0})
    earlier, later = [
        actor.name
        for node in cluster.supervision.directory().nodes
        for actor in cluster.supervision.directory().actors
        if actor.node == node.name and actor.name in ("echo", "other")
    ]
    hung = psutil.Process(pid_of(cluster, earlier))
    hung.suspend()
    try:
        os.kill(pid_of(cluster, later), signal.SIGKILL)
        assert (await cluster.node.ask(later, Ping(value=7), SECONDS, again=True)).value == 7
        assert (await cluster.node.ask(later, GetLog(), SECONDS)).incarnation == 2
    finally:
        hung.resume()
    assert (await cluster.node.ask(earlier, GetLog(), SECONDS)).incarnation == 1


async def test_a_process_that_is_being_launched_when_the_topology_stops_ends_too(start, children):
    cluster = await start({"placement": "each", "actors": {"watcher": {"class": "runtime_players:Watcher"}}})
    launched = asyncio.Event()
    supervisor = cluster._supervisor
    launch = supervisor._launcher.launch

    async def tell_and_launch(node: str, incarnation: int):
        launched.set()
        return await launch(node, incarnation)

    supervisor._launcher.launch = tell_and_launch
    os.kill(pid_of(cluster, "echo"), signal.SIGKILL)
    await launched.wait()
    await cluster.stop()
    assert children() == []
