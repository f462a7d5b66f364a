"""Pieces of an answer reach its client at once where they can, and by the stream's own task where not."""

from __future__ import annotations

import asyncio

import pytest

from pageant.actors.frontend.outputs import Arrived
from pageant.actors.http.answers import Answers
from pageant.actors.http.errors import Disconnected
from pageant.actors.http.streams import Pacemaker, Teller
from pageant.protocol.sampling import SamplingParams
from pageant.protocol.serving import Finished


class Words:
    """Tells each piece's text."""

    def first(self):
        return [b"<"]

    def next(self, piece):
        if piece.said.content == "bad":
            raise ValueError("nobody thought of that")
        return [piece.said.content.encode()] if piece.said.content else []

    def last(self):
        return [b">"]

    def failed(self, error):
        return [b"!" + str(error.error.code or error.error.type).encode()]


class Wire:
    """Both ways to a client; what was written goes by its way."""

    def __init__(self):
        self.ready, self.written = True, []

    async def sent(self, events):
        self.written.append(("task", b"".join(events)))

    def write(self, body):
        self.written.append(("direct", body))


@pytest.fixture
async def stream():
    answers = Answers("a", 1, SamplingParams(), None, lambda names: None, lambda answers: None)
    wire, pacemaker = Wire(), Pacemaker(tick_seconds=1.0, stall_seconds=2.0)
    teller = Teller(answers, Words(), wire.sent, lambda: None, pacemaker, wire)
    writer = asyncio.ensure_future(teller.tell())
    await asyncio.sleep(0)
    yield answers, wire, writer
    writer.cancel()


def come(answers, text, finished=None):
    answers.prompts[0].output(Arrived(0, text, [1] * len(text), finished))
    answers.flush()


DONE = Finished(reason="stop")


async def test_what_comes_is_written_in_the_same_turn(stream):
    answers, wire, writer = stream
    assert wire.written == [("task", b"<")]
    come(answers, "ab")
    come(answers, "c")
    assert wire.written[1:] == [("direct", b"ab"), ("direct", b"c")]
    come(answers, "d", DONE)
    await writer
    assert wire.written[3:] == [("task", b"d"), ("task", b">")]


async def test_what_comes_while_the_client_does_not_read_is_merged_by_the_task(stream):
    answers, wire, _ = stream
    wire.ready = False
    come(answers, "ab")
    come(answers, "cd")
    assert wire.written == [("task", b"<")]
    await asyncio.sleep(0)
    assert wire.written[1:] == [("task", b"abcd")]
    wire.ready = True
    come(answers, "e")
    assert wire.written[2:] == [("direct", b"e")]


async def test_what_cannot_be_told_ends_this_stream_alone(stream):
    answers, wire, writer = stream
    come(answers, "bad")  # which must not reach the loop's other streams
    await writer
    assert wire.written[1:] == [("task", b"!server_error")]


async def test_a_silent_stream_gives_a_sign_of_life(stream):
    answers, wire, _ = stream
    come(answers, "")
    answers.flush()
    await asyncio.sleep(0)
    assert ("task", b"") in wire.written


async def test_who_has_gone_is_written_nothing_more(stream):
    answers, wire, writer = stream
    answers.leave()
    come(answers, "ab")
    with pytest.raises(Disconnected):
        await writer
    assert wire.written == [("task", b"<")]
