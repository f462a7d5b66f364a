"""Links between nodes: who is accepted, broken connections, and receivers that are slow or fail."""

from __future__ import annotations

import asyncio
import contextlib
import os

import pytest
import zmq

from pageant.actors.runtime.transport import router, zeromq
from pageant.actors.runtime.transport.errors import LinkRefused, NoAnswer
from pageant.actors.runtime.transport.zeromq import ZmqLink
from pageant.protocol.compatibility import FieldShape, OwnProtocol, StructShape, own_protocol
from tests.actors.runtime.guests import SECONDS


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

    def make(name: str, incarnation: int = 1, receiver: Deaf | None = None, protocol=None) -> ZmqLink:
        version, receiver = f"1.{len(made)}", receiver or Deaf()
        link = ZmqLink(name, incarnation, "tcp://127.0.0.1:*", receiver, version, protocol=protocol)
        made.append(link)
        return link

    yield make
    for link in made:
        link.close()


OURS = own_protocol()
LOAD = OURS.shapes["Load"]


def with_load(**fields: FieldShape) -> OwnProtocol:
    """Return a protocol of which one message has other fields."""
    return OwnProtocol(OURS.shapes | {"Load": StructShape(LOAD.fields | fields, LOAD.rest)})


async def test_an_incompatible_protocol_is_refused_with_both_versions_and_the_difference_named(links):
    receiver = Deaf()
    theirs = with_load(running=FieldShape(b'{"type":"string"}'))
    root, other = links("root", 1, receiver), links("b", protocol=theirs)
    with pytest.raises(LinkRefused) as caught:
        await other.connect("root", 1, root.endpoint)
    versions = (f"1.1 ({theirs.fingerprint})", f"1.0 ({OURS.fingerprint})")
    for part in ("protocol mismatch", *versions, "b", "root", "Load.running has another type"):
        assert part in str(caught.value)
    assert not root.send("b", [b"", b""])


async def test_a_node_that_insists_on_an_incompatible_protocol_is_refused_too(links, monkeypatch):
    receiver = Deaf()
    root, other = links("root", 1, receiver), links("b", protocol=with_load(more=FieldShape(b"{}")))
    monkeypatch.setattr(
        zeromq.PeerProtocol, "differences", lambda self, own: [] if own is not OURS else WRONG
    )
    with pytest.raises(LinkRefused, match=r"1\.1 .* 1\.0 .*: Load is wrong"):
        await other.connect("root", 1, root.endpoint)
    assert len(receiver.refusals) == 1 and not root.send("b", [b"", b""])


WRONG = ["Load is wrong"]


async def test_a_protocol_that_has_a_field_more_is_understood(links):
    receivers = Deaf(), Deaf()
    theirs = with_load(more=FieldShape(b'{"type":"integer"}', True, 7))
    root, other = links("root", 1, receivers[0]), links("b", 1, receivers[1], theirs)
    await other.connect("root", 1, root.endpoint)
    assert other.send("root", [b"header", b"body"]) and root.send("b", [b"header", b"body"])
    for receiver in receivers:
        await receiver.next()
        assert [frames for _, frames in receiver.received] == [[b"header", b"body"]] and not receiver.refusals
    known = root.protocol_of("b")
    assert known is not None and known.version == "1.1"
    assert known.is_default("Load", "more", 7) and not known.is_default("Load", "more", 8)
    assert other.protocol_of("root") is not None and other.protocol_of("root").version == "1.0"


async def test_nodes_of_one_version_do_not_tell_their_protocols(links, monkeypatch):
    monkeypatch.setattr(OwnProtocol, "describe", None)
    root, other = links("root"), links("b")
    await other.connect("root", 1, root.endpoint)
    assert root.protocol_of("b") is other.protocol_of("root") is None


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


async def test_what_a_forgotten_node_still_says_is_refused_without_a_warning(links, caplog):
    receiver = Deaf()
    root, other, stranger = links("root", 1, receiver), links("b"), links("c")
    await other.connect("root", 1, root.endpoint)
    await stranger.connect("root", 1, root.endpoint)
    assert root.forget("b", 1)
    root._unlink(root._identities["c"])  # as one that never was known
    for late in (other, stranger):
        assert late.send("root", [b"header", b"body"])
        await receiver.next()
    assert receiver.received == [] and len(receiver.refusals) == 2
    assert [record.getMessage().split(" from ")[0] for record in caplog.records] == ["root refused what came"]


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
