"""A stream of events of another's making: told as they come, with signs of life, and left without harm."""

from __future__ import annotations

import asyncio

import pytest

from pageant.actors.http.openai.event_log import EventLog
from pageant.actors.http.streams import (
    ABORT,
    KEEP_ALIVE,
    ByteStream,
    Pacemaker,
)


class Connection:
    """Connection that ASGI gives a response: `sent` has its bodies; `leave` and `stop_reading` are the client's."""

    def __init__(self):
        self.sent, self.left, self.reads, self.aborted = [], asyncio.Event(), asyncio.Event(), False
        self._sent = asyncio.Event()
        self.reads.set()
        self.scope = {"state": {ABORT: self.abort}}

    def abort(self):
        self.aborted = True

    async def receive(self):
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message):
        await self.reads.wait()
        self.sent.append(message)
        self._sent.set()

    async def until(self, count):
        while len(self.sent) < count:
            self._sent.clear()
            await self._sent.wait()

    @property
    def bodies(self):
        assert self.sent[0]["type"] == "http.response.start"
        return [message["body"] for message in self.sent[1:]]


@pytest.fixture
def connection():
    return Connection()


def responding(connection, log, tick=60.0, stall=60.0):
    response = ByteStream(log.follow(-1), Pacemaker(tick, stall), {"x-request-id": "a"}).to_asgi_response()
    return asyncio.create_task(response(connection.scope, connection.receive, connection.send))


async def test_events_are_sent_as_they_come_and_then_it_ends(connection):
    log = EventLog()
    await log.write([b"1", b"2"])
    task = responding(connection, log)
    await connection.until(2)
    await log.write([b"3"])
    await connection.until(3)
    log.close()
    await task
    assert connection.bodies == [b"12", b"3", b""]
    assert [message["more_body"] for message in connection.sent[1:]] == [True, True, False]
    headers = dict(connection.sent[0]["headers"])
    assert headers[b"x-request-id"] == b"a" and headers[b"content-type"].startswith(b"text/event-stream")


async def test_silence_is_broken_by_comments(connection):
    task = responding(connection, EventLog(), tick=0.001)
    await connection.until(4)
    assert set(connection.bodies) == {KEEP_ALIVE}
    connection.left.set()
    await task


async def test_a_client_that_leaves_ends_its_stream_alone(connection):
    log, other = EventLog(), Connection()
    tasks = [responding(one, log) for one in (connection, other)]
    connection.left.set()
    await tasks[0]
    await log.write([b"1"])
    log.close()
    await tasks[1]
    assert other.bodies == [b"1", b""] and not connection.aborted


async def test_a_client_that_does_not_read_is_dropped(connection):
    log = EventLog()
    task = responding(connection, log, stall=0.001)
    await connection.until(1)
    connection.reads.clear()
    await log.write([b"1"])
    await task
    assert connection.aborted and connection.bodies == []
