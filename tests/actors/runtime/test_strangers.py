"""Strangers at a node's socket: refused, counted, reported once, and harmless."""

from __future__ import annotations

import asyncio
import os
import socket

import zmq
from runtime_players import Ping

from pageant.protocol.codec import Codec
from pageant.protocol.envelope import Header, Mode, encode_header
from pageant.protocol.handshake import Hello, fingerprint
from tests.actors.runtime.guests import GUEST, SECONDS, ended, join, life_of


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
