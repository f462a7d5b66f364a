"""Answers as streams: server-sent events over HTTP, or text messages over a WebSocket.

A stream is one task, which sees to its beginning and its end. In between, what has come is turned into events and
written in the turn of the loop in which it came, while the task sleeps: waking it for each token costs more than
all of the rest. It wakes only where a write would have to wait.

Two things would let a connection hang for nothing, and a `Pacemaker` looks after both for all streams: silence that
a proxy takes for death (a comment is sent), and a client that does not read (it is dropped).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

import msgspec
from litestar import Response

from pageant.actors.http.answers import Answers, Piece
from pageant.actors.http.errors import Disconnected, ErrorBody, told

KEEP_ALIVE = b": keep-alive\n\n"
HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}

encode = msgspec.json.Encoder().encode
Receive = Callable[[], Awaitable[Any]]
Frame = Callable[[bytes], bytes]
ABORT = "pageant_abort"  # in a request's state: what gives its connection up
DIRECT = "pageant_direct"  # there too: what writes to it without waiting


def sse(body: bytes) -> bytes:
    """A body as one server-sent event."""
    return b"data: " + body + b"\n\n"


class Direct(Protocol):
    """Writes parts of a body that has begun, at once."""

    @property
    def ready(self) -> bool:
        """Tell whether a direct write is possible: the client reads."""

    def write(self, body: bytes) -> None:
        """The next part."""


class StreamWriter(Protocol):
    """Writes a response in one API's shape, event by event."""

    def first(self) -> Sequence[bytes]:
        """Return the events before any output."""

    def next(self, piece: Piece) -> Sequence[bytes]:
        """Return the events of a choice's next delta."""

    def last(self) -> Sequence[bytes]:
        """Return the events after all choices have ended."""

    def failed(self, error: ErrorBody) -> Sequence[bytes]:
        """Return the last events of a response that failed."""


class Pacemaker:
    """Wakes streams that were silent for a while, and drops those whose client does not read.

    Args:
        stall_seconds: so long may one write take.
    """

    def __init__(self, tick_seconds: float, stall_seconds: float) -> None:
        self.tick_seconds, self.stall_seconds = tick_seconds, stall_seconds
        self._stall_ticks = max(1, round(stall_seconds / tick_seconds))
        self.streams: set[Teller] = set()
        self.streamed_tokens = 0

    async def run(self) -> None:
        """Tick for ever."""
        while True:
            await asyncio.sleep(self.tick_seconds)
            for stream in list(self.streams):
                stream.tick(self._stall_ticks)


class Teller:
    """Tells one answer.

    Args:
        write: sends events, or a sign of life if there are none.
        drop: gives the connection up.
        pacemaker: looks after it.
        direct: writes without waiting; None where that cannot be done.
    """

    def __init__(
        self,
        answers: Answers,
        writer: StreamWriter,
        write: Callable[[Sequence[bytes]], Awaitable[None]],
        drop: Callable[[], None],
        pacemaker: Pacemaker,
        direct: Direct | None = None,
    ) -> None:
        self._answers, self._writer, self._write, self._drop = answers, writer, write, drop
        self._pacemaker, self._direct = pacemaker, direct
        self._wrote = True  # since the last tick
        self._ticks_in_write: int | None = None

    def tick(self, stall_ticks: int) -> None:
        """Time has passed."""
        if self._ticks_in_write is not None:
            self._ticks_in_write += 1
            if self._ticks_in_write > stall_ticks:
                self._drop()
        elif not self._wrote:
            self._answers.flush()
        self._wrote = False

    async def tell(self) -> None:
        """Write the whole stream, then close the request.

        Raises:
            Disconnected: the client has gone.
        """
        answers, writer = self._answers, self._writer
        self._pacemaker.streams.add(self)
        if self._direct is not None:
            answers.push = self._push
        try:
            if first := writer.first():
                await self._send(first)
            while not answers.done:
                await answers.wait()
                nothing_came = not answers.fresh
                events = self._events()
                if events or nothing_came:
                    await self._send(events)
            await self._send(writer.last())
        except Disconnected:
            raise
        except Exception as error:
            await self._send(writer.failed(told(error)))
        finally:
            answers.push = None
            self._pacemaker.streams.discard(self)
            answers.close()

    def _events(self) -> list[bytes]:
        """Return the events of the output that has come."""
        events: list[bytes] = []
        for piece in self._answers.take():
            events += self._writer.next(piece)
            self._pacemaker.streamed_tokens += len(piece.token_ids)
        return events

    def _push(self) -> bool:
        """Writes what has come, unless that takes its time, or there is more to do than that."""
        answers, direct = self._answers, self._direct
        assert direct is not None
        if answers.error is not None or not (answers.fresh and answers.num_running and direct.ready):
            return False
        try:
            events = self._events()
        except (
            Exception
        ) as error:  # it is told as the end of this stream, whoever else is served on this loop
            answers.error = error
            return False
        if events:
            direct.write(b"".join(events))
            self._wrote = True
        return True

    async def _send(self, events: Sequence[bytes]) -> None:
        self._ticks_in_write = 0
        await self._write(events)
        self._ticks_in_write, self._wrote = None, True


class EventStream(Response[Any]):
    """The response that tells an answer as server-sent events."""

    def __init__(
        self, answers: Answers, writer: StreamWriter, pacemaker: Pacemaker, headers: Mapping[str, str]
    ) -> None:
        super().__init__(None, media_type="text/event-stream", headers=dict(headers))
        self._answers, self._writer, self._pacemaker = answers, writer, pacemaker

    def to_asgi_response(self, *_: Any, **__: Any) -> Any:
        """Return the response, as Litestar calls for it."""
        return self._respond

    async def _respond(self, scope: Any, receive: Receive, send: Callable[[Any], Awaitable[None]]) -> None:
        async def write(events: Sequence[bytes]) -> None:
            body = b"".join(events) or KEEP_ALIVE
            await send({"type": "http.response.body", "body": body, "more_body": True})

        headers = {**HEADERS, **self.headers, "content-type": "text/event-stream; charset=utf-8"}
        raw = [(name.encode(), value.encode()) for name, value in headers.items()]
        state = scope["state"]
        teller = Teller(self._answers, self._writer, write, state[ABORT], self._pacemaker, state.get(DIRECT))
        with contextlib.suppress(Disconnected):
            async with until_gone(receive, self._answers):
                await send({"type": "http.response.start", "status": 200, "headers": raw})
                await teller.tell()
                await send({"type": "http.response.body", "body": b"", "more_body": False})


class ByteStream(Response[Any]):
    """The response that sends events of another's making: its client may leave without ending anything."""

    def __init__(
        self, events: AsyncGenerator[bytes, None], pacemaker: Pacemaker, headers: Mapping[str, str]
    ) -> None:
        super().__init__(None, media_type="text/event-stream", headers=dict(headers))
        self._events, self._pacemaker = events, pacemaker

    def to_asgi_response(self, *_: Any, **__: Any) -> Any:
        """Return the response, as Litestar calls for it."""
        return self._respond

    async def _respond(self, scope: Any, receive: Receive, send: Callable[[Any], Awaitable[None]]) -> None:
        headers = {**HEADERS, **self.headers, "content-type": "text/event-stream; charset=utf-8"}
        raw = [(name.encode(), value.encode()) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": 200, "headers": raw})
        try:
            await while_connected(self._send_all(send), receive, scope["state"][ABORT])
        finally:
            await self._events.aclose()

    async def _send_all(self, send: Callable[[Any], Awaitable[None]]) -> None:
        """Send the events as they come, and a sign of life where they do not.

        Raises:
            TimeoutError: one could not be sent in time.
        """
        coming = asyncio.ensure_future(self._next())
        try:
            while True:
                done, _ = await asyncio.wait({coming}, timeout=self._pacemaker.tick_seconds)
                body = coming.result() if done else KEEP_ALIVE
                async with asyncio.timeout(self._pacemaker.stall_seconds):
                    await send(
                        {"type": "http.response.body", "body": body or b"", "more_body": body is not None}
                    )
                if body is None:
                    return
                if done:
                    coming = asyncio.ensure_future(self._next())
        finally:
            await _end([coming])

    async def _next(self) -> bytes | None:
        return await anext(self._events, None)


async def while_connected(sending: Awaitable[None], receive: Receive, drop: Callable[[], None]) -> None:
    """Await `sending` until it ends or the client leaves. Where it raises TimeoutError, the client does not read, and
    `drop` gives the connection up.
    """
    tasks = [asyncio.ensure_future(sending), asyncio.ensure_future(_disconnected(receive))]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if tasks[0].done():
            tasks[0].result()
    except TimeoutError:
        drop()
    finally:
        await _end(tasks)


async def _end(tasks: Sequence[asyncio.Future[Any]]) -> None:
    """Cancel tasks, and return when they have ended."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    """Return when the client has left."""
    while not (await receive())["type"].endswith(".disconnect"):
        pass


@contextlib.asynccontextmanager
async def until_gone(receive: Receive, answers: Answers) -> AsyncIterator[None]:
    """Fail `answers` with `Disconnected` if the client leaves within the context."""

    async def watch() -> None:
        await _disconnected(receive)
        answers.leave()

    watching = asyncio.ensure_future(watch())
    try:
        yield
    finally:
        watching.cancel()
