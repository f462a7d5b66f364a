"""Conversations between two nodes, over a link in memory that delivers when it is told to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec
import pytest
from runtime_players import CountTo, Echo, GetLog, Hold, HoldBeside, Note, Ping, Pong, Reverse

from pageant.actors.runtime.node import Node
from pageant.protocol.arrays import int32
from pageant.protocol.codec import Codec
from pageant.protocol.compatibility import PeerProtocol, own_protocol
from pageant.protocol.envelope import FRAMES_MAX, Header, Mode, decode_header, encode_header
from pageant.protocol.errors import PageantError, PeerGone, ProtocolError
from pageant.protocol.supervision import ActorEntry, Directory, NodeEntry

SECONDS = 10.0


class MemoryLink:
    """One direction. `broken` refuses; `held` keeps what comes until `release`."""

    def __init__(self, here: Node, there: Node) -> None:
        self.here, self.there = here, there
        self.broken = self.hold = self.unlinked = False
        self.protocol: PeerProtocol | None = None
        self.held: list[list[Any]] = []
        self.forgotten: list[tuple[str, int]] = []

    def is_linked(self, node: str) -> bool:
        return not self.unlinked

    def protocol_of(self, node: str) -> PeerProtocol | None:
        return self.protocol

    def send(self, node: str, frames: Sequence[Any]) -> bool:
        if self.broken or self.unlinked or node != self.there.name:
            return False
        raw = [bytes(frame) if isinstance(frame, bytes) else frame.tobytes() for frame in frames]
        self.held.append(raw)
        if not self.hold:
            self.release()
        return True

    def release(self) -> None:
        for frames in self.held:
            self.here.loop.call_soon(self.there.remote.receive, self.here.name, frames)
        self.held.clear()

    def forget(self, node: str, incarnation: int) -> bool:
        self.forgotten.append((node, incarnation))
        return True


def directory(version: int, *, node: int = 1, actor: int = 1, up: bool = True) -> Directory:
    nodes = [NodeEntry(name="a", incarnation=1, endpoint="")]
    if node:
        nodes.append(NodeEntry(name="b", incarnation=node, endpoint=""))
    entry = ActorEntry(name="echo", node="b", incarnation=actor, up=up)
    return Directory(version=version, nodes=tuple(nodes), actors=(entry,))


class Pair:
    def __init__(self) -> None:
        self.a, self.b = Node("a"), Node("b")
        self.to_b, self.to_a = MemoryLink(self.a, self.b), MemoryLink(self.b, self.a)
        self.a.remote.connect(self.to_b, "a")
        self.b.remote.connect(self.to_a, "a")
        self.echo = Echo(Echo.Options())

    async def start(self) -> None:
        await self.b.add("echo", 1, self.echo).start()
        for node in (self.a, self.b):
            node.update(directory(1))

    def ask(self, request) -> asyncio.Task:
        return asyncio.create_task(self.a.ask("echo", request, SECONDS))

    def send_raw(self, header: Header, *frames: bytes) -> None:
        self.b.remote.receive("a", [encode_header(header), *frames])

    def idle(self) -> bool:
        remotes = (self.a.remote, self.b.remote)
        return all(not remote._asked and not remote._answering for remote in remotes)


async def settle(turns: int = 20) -> None:
    for _ in range(turns):
        await asyncio.sleep(0)


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    pair = Pair()
    await pair.start()
    yield pair
    await pair.a.stop()
    await pair.b.stop()
    assert asyncio.all_tasks() <= {asyncio.current_task()}


def tell_header(**changes: Any) -> Header:
    fields = {"mode": Mode.TELL, "kind": "Note", "to": "echo", "sender": "node/a", "to_incarnation": 1}
    return Header(**(fields | changes))


NOTE = Codec().encode(Note(text="hello"))[0]


async def test_what_waits_for_news_of_its_sender_does_not_outlive_it(pair):
    from_echo = tell_header(to="listener", sender="echo", from_incarnation=2, to_incarnation=0)
    listener = Echo(Echo.Options())
    await pair.a.add("listener", 1, listener).start()
    pair.a.remote.receive("b", [encode_header(from_echo), NOTE])
    await settle()
    assert listener.log == [] and len(pair.a.remote._early) == 1
    gone = ActorEntry(name="echo", node="b", incarnation=2, up=False, final=True)
    pair.a.update(Directory(version=2, nodes=directory(2).nodes, actors=(gone,)))
    await settle()
    assert listener.log == [] and len(pair.a.remote._early) == 0
    assert pair.a.cells["listener"].statistics().stale == 1


async def test_an_ask_of_one_that_is_starting_does_not_overtake_what_it_told_before(pair):
    others: list[Echo] = []
    for name in ("listener", "other"):
        others.append(Echo(Echo.Options()))
        await pair.a.add(name, 1, others[-1]).start()
    for to in ("other", "listener"):
        told = tell_header(to=to, sender="echo", from_incarnation=2, to_incarnation=0)
        pair.a.remote.receive("b", [encode_header(told), NOTE])
    asks = Header(Mode.ASK, "GetLog", "listener", "echo", correlation=1, from_incarnation=2)
    pair.a.remote.receive("b", [encode_header(asks), Codec().encode(GetLog())[0]])
    await settle()
    assert [other.log for other in others] == [["hello"], []] and len(pair.a.remote._early) == 1
    assert list(pair.a.cells["listener"].statistics().kinds) == ["Note", "GetLog"]
    pair.a.update(directory(2, actor=2))
    await settle()
    assert [other.log for other in others] == [["hello"], ["hello"]] and len(pair.a.remote._early) == 0


async def test_an_ask_and_its_answer_leave_nothing_behind(pair):
    assert (await pair.ask(Ping(value=3))).value == 3
    assert pair.idle()


async def test_a_message_to_an_earlier_life_is_dropped_and_counted(pair):
    pair.send_raw(tell_header(to_incarnation=7), NOTE)
    await settle()
    assert pair.echo.log == []
    assert pair.b.statistics().actors["echo"].stale == 1
    assert pair.b.dead_letters == {"actor moved": 1}


async def test_an_ask_of_an_earlier_life_fails(pair):
    pair.a.update(directory(2, actor=9))
    with pytest.raises(PeerGone, match="not on this node any more"):
        await pair.ask(Ping())
    assert pair.idle()


async def test_a_message_from_an_earlier_life_is_dropped_and_counted(pair):
    entry = ActorEntry(name="teller", node="a", incarnation=3, up=True)
    pair.b.update(Directory(version=2, nodes=directory(1).nodes, actors=(*directory(1).actors, entry)))
    for incarnation in (1, 2, 3):
        pair.send_raw(tell_header(sender="teller", from_incarnation=incarnation), NOTE)
    await settle()
    assert pair.echo.log == ["hello"]
    assert pair.b.statistics().actors["echo"].stale == 2


async def test_asks_in_flight_fail_when_the_actor_goes(pair):
    asked = pair.ask(Hold(name="x"))
    await settle()
    pair.a.update(directory(2, up=False))
    with pytest.raises(PeerGone, match="echo died before it answered"):
        await asked
    assert pair.a.remote._asked == {}
    pair.b.remote.replaced("a")
    await settle()


async def test_asks_in_flight_fail_when_the_node_goes_and_so_do_those_of_its_agent(pair):
    asked = [pair.ask(Hold(name="x")), asyncio.create_task(pair.a.ask("node/b", GetLog(), SECONDS))]
    pair.to_b.hold = True
    await settle()
    pair.a.update(directory(2, node=0, up=False))
    for task in asked:
        with pytest.raises(PageantError):
            await task
    assert pair.to_b.forgotten == [("b", 1)]
    assert pair.a.remote._asked == {}


async def test_what_a_dead_node_asked_is_cancelled(pair):
    asked = [pair.ask(Hold(name="serial")), pair.ask(HoldBeside(name="beside"))]
    stream = pair.a.stream("echo", CountTo(n=10**9), SECONDS)
    await settle()
    without_a = Directory(version=2, nodes=directory(1).nodes[1:], actors=directory(1).actors)
    pair.b.update(without_a)
    await settle(60)
    assert pair.b.remote._answering == {}
    assert "cancelled serial" in pair.echo.log
    assert (await pair.b.ask("echo", Ping(value=1), SECONDS)).value == 1
    for task in asked:
        task.cancel()
    await asyncio.wait(asked)
    await stream.aclose()


async def test_a_stream_to_a_dead_node_lets_its_producer_go(pair):
    stream = pair.a.stream("echo", CountTo(n=10**9), SECONDS, credit=4)
    assert (await anext(stream)).value == 0
    await settle()
    produced = pair.echo.log.count("produced")
    assert produced <= 8
    pair.b.update(Directory(version=2, nodes=directory(1).nodes[1:], actors=directory(1).actors))
    await settle()
    assert "count ended" in pair.echo.log and pair.b.remote._answering == {}
    await stream.aclose()


async def test_a_stream_over_a_broken_link_ends_its_producer(pair):
    stream = pair.a.stream("echo", CountTo(n=10**9), SECONDS, credit=4)
    assert (await anext(stream)).value == 0
    pair.to_a.broken = True
    await anext(stream), await anext(stream), await anext(stream)
    await settle()
    assert "count ended" in pair.echo.log and pair.b.remote._answering == {}
    await stream.aclose()


async def test_a_new_life_of_a_node_does_not_get_the_answers_of_its_former_one(pair):
    pair.to_a.hold = True
    pair.send_raw(
        Header(Mode.ASK, "HoldBeside", "echo", "node/a", 1), Codec().encode(HoldBeside(name="old"))[0]
    )
    await settle()
    pair.b.remote.replaced("a")
    pair.send_raw(Header(Mode.ASK, "Ping", "echo", "node/a", 1), Codec().encode(Ping(value=5))[0])
    await settle()
    answers = [decode_header(frames[0]) for frames in pair.to_a.held]
    assert [(answer.mode, answer.correlation) for answer in answers] == [(Mode.REPLY, 1)]
    pair.to_a.held.clear()


async def test_an_answer_after_the_ask_was_given_up_is_dropped(pair):
    pair.to_a.hold = True
    asked = pair.ask(Ping(value=1))
    await settle()
    asked.cancel()
    await asyncio.wait([asked])
    pair.to_a.hold = False
    pair.to_a.release()
    await settle()
    assert pair.idle() and pair.a.remote.refused == 0


async def test_an_answer_that_does_not_decode_fails_the_ask_and_is_counted(pair):
    pair.to_a.hold = True
    asked = pair.ask(Ping(value=1))
    await settle()
    (frames,) = pair.to_a.held
    frames[1] = b"\xc1"
    pair.to_a.release()
    with pytest.raises(ProtocolError, match="Pong"):
        await asked
    await settle()
    assert pair.a.remote.refused == 1 and pair.idle()


async def test_an_ask_that_cannot_be_encoded_fails_where_it_is_made(pair):
    with pytest.raises((TypeError, OverflowError)):
        await pair.ask(Ping(value=2**70))
    assert pair.idle()


async def test_a_reply_that_cannot_be_encoded_fails_the_ask(pair):
    pair.echo.ping_value = 2**70
    cell = pair.b.cells["echo"]
    cell._table[Ping] = (lambda request: Pong(value=2**70), *cell._table[Ping][1:])
    with pytest.raises(PageantError, match=r"OverflowError|TypeError"):
        await pair.ask(Ping())
    assert pair.idle()


async def test_an_unreachable_node_fails_asks_and_counts_tells(pair):
    pair.to_b.broken = True
    with pytest.raises(PeerGone, match="cannot be reached on b"):
        await pair.ask(Ping())
    pair.a.tell("echo", Note(text="x"))
    assert pair.a.dead_letters == {"node unreachable": 1}
    assert pair.idle()


@pytest.mark.parametrize(
    "frames",
    [
        [],
        [b""],
        [b"\x90"],
        [b"\x90", b""],
        [b"garbage", b"garbage"],
        [encode_header(tell_header()), b"\xc1"],
        [encode_header(tell_header(kind="NoSuchKind")), NOTE],
        [encode_header(tell_header()), NOTE, b"an array that nobody named"],
        [encode_header(tell_header(mode=Mode.LINK)), NOTE],
        [encode_header(tell_header()), NOTE] + [b""] * FRAMES_MAX,
    ],
    ids=range(10),
)
async def test_what_does_not_decode_is_refused_and_counted(pair, frames):
    pair.b.remote.receive("a", frames)
    assert pair.b.remote.refused == 1 and pair.b.remote.last_refusal.startswith("from a: ")
    assert (await pair.ask(Ping(value=1))).value == 1


@pytest.mark.parametrize("mode", [Mode.REPLY, Mode.ITEM, Mode.END, Mode.ERROR, Mode.CANCEL, Mode.CREDIT])
async def test_the_middle_of_a_conversation_that_never_began_is_ignored(pair, mode):
    pair.send_raw(Header(mode, "", "", "", 99, credit=2**60), b"")
    assert (await pair.ask(Ping(value=1))).value == 1


async def test_a_field_of_another_version_is_left_out_with_one_warning(pair, caplog):
    pair.to_a.protocol = PeerProtocol("9.9", own_protocol().describe())
    body = msgspec.msgpack.encode({"type": "Ping", "value": 7, "later": [1]})
    for number in (1, 2):
        pair.send_raw(Header(Mode.ASK, "Ping", "echo", "node/a", number), body)
    assert pair.b.remote.refused == 0
    told = [record.getMessage() for record in caplog.records if "leaves out" in record.getMessage()]
    assert told == [
        "b leaves out Ping.later, which node a of version 9.9 sends and this version does not know"
    ]


async def test_an_ask_that_does_not_decode_is_answered_with_why(pair):
    pair.to_a.hold = True
    pair.send_raw(Header(Mode.ASK, "Ping", "echo", "node/a", 1), b"\x81\xa1x\x01")
    (frames,) = pair.to_a.held
    failure = Codec().decode("Failure", frames[1])
    assert decode_header(frames[0]).mode is Mode.ERROR and failure.cause == "MalformedMessage"
    pair.to_a.held.clear()


async def test_arrays_that_came_over_a_link_cannot_be_written(pair):
    reply = await pair.ask(Reverse(ids=int32([1, 2, 3])))
    assert reply.ids.tolist() == [3, 2, 1]
    assert not reply.ids.flags.writeable and not reply.received_writeable


async def test_what_is_told_to_a_node_before_it_has_linked_waits_for_that(pair):
    pair.to_b.unlinked = True
    pair.a.tell("echo", Note(text="one"))
    pair.a.tell("echo", Note(text="two"))
    await settle()
    assert pair.echo.log == [] and not pair.a.dead_letters
    pair.to_b.unlinked = False
    pair.a.remote.met("b")
    await settle()
    assert pair.echo.log == ["one", "two"]


async def test_what_is_told_between_the_link_and_its_news_waits_its_turn(pair):
    pair.to_b.unlinked = True
    pair.a.tell("echo", Note(text="one"))
    pair.to_b.unlinked = False
    pair.a.tell("echo", Note(text="two"))
    pair.a.remote.met("b")
    pair.a.tell("echo", Note(text="three"))
    await settle()
    assert pair.echo.log == ["one", "two", "three"]


async def test_what_waits_for_a_link_that_never_comes_is_counted(pair):
    pair.to_b.unlinked = True
    pair.a.tell("echo", Note(text="one"))
    pair.a.update(directory(2, node=0))
    assert pair.a.dead_letters == {"node unreachable": 1}


async def test_what_comes_from_an_actor_that_is_not_known_yet_waits_for_the_directory(pair):
    pair.send_raw(tell_header(sender="newcomer", from_incarnation=1), NOTE)
    await settle()
    assert pair.echo.log == []
    entry = ActorEntry(name="newcomer", node="a", incarnation=1, up=True)
    pair.b.update(Directory(version=2, nodes=directory(2).nodes, actors=(*directory(2).actors, entry)))
    await settle()
    assert pair.echo.log == ["hello"]
