"""The actor and its messages that the runtime's benchmark talks to."""

from __future__ import annotations

from pageant.actors.runtime import Actor, receives
from pageant.protocol.arrays import UInt8Vector
from pageant.protocol.message import Message, Request


class BenchNote(Message, frozen=True, kw_only=True):
    """A message without an answer."""

    value: int


class BenchPong(Message, frozen=True, kw_only=True):
    """The answer to a ping."""

    value: int


class BenchPing(Request[BenchPong], frozen=True, kw_only=True):
    """A small request."""

    value: int


class BenchBlob(Message, frozen=True, kw_only=True):
    """An array that came back."""

    data: UInt8Vector


class BenchSend(Request[BenchBlob], frozen=True, kw_only=True):
    """An array that is to come back."""

    data: UInt8Vector


class Echo(Actor):
    """Says back what it is told."""

    @receives
    def note(self, message: BenchNote) -> None:
        """Takes a note."""

    @receives
    def ping(self, request: BenchPing) -> BenchPong:
        return BenchPong(value=request.value)

    @receives
    def send(self, request: BenchSend) -> BenchBlob:
        return BenchBlob(data=request.data)
