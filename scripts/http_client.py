"""A lean client: a socket per stream, events counted as their bytes come, and read only when the last has come.

What a client costs is missing to the server that it measures on the same machine. So nothing is parsed while a
stream runs: each read is given a time and the number of events in it, and kept.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from array import array
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import msgspec

from pageant.protocol.errors import BadRequest

EVENT = b"\ndata:"  # JSON has no bare newline, so that this is in no event's content
LAST_CHUNK = b"\r\n0\r\n\r\n"
TAIL = len(LAST_CHUNK) - 1  # bytes of a read that may belong to what the next one completes
HEADERS_MAX = 65_536


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None
    finish_reason: str | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class _Event(msgspec.Struct):
    choices: list[_Choice] = msgspec.field(default_factory=list)
    usage: _Usage | None = None
    error: Any = None


_decode = msgspec.json.Decoder(_Event).decode
_encode = msgspec.json.Encoder().encode


class Failed(Exception):
    """A request that was not answered to its end: the message says why."""


@dataclass(eq=False)
class Answer:
    """Answer of one request. Times are of `time.perf_counter`, in seconds."""

    sent: float
    first: float = 0.0  # the first event with output
    last: float = 0.0
    text: str = ""
    prompt_tokens: int = 0
    output_tokens: int = 0
    finish_reason: str | None = None
    gaps: array[float] = field(default_factory=lambda: array("d"))  # between events with output


class Client:
    """Asks one server.

    Args:
        url: its base, such as `http://127.0.0.1:8000`; `/v1` may follow.
    """

    def __init__(self, url: str, api_key: str | None = None) -> None:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise BadRequest(f"the URL is {url!r}; expected such as http://127.0.0.1:8000", "url")
        self._ssl = ssl.create_default_context() if parts.scheme == "https" else None
        self._host, self._port = parts.hostname, parts.port or (443 if self._ssl else 80)
        self._base = parts.path.rstrip("/").removesuffix("/v1")
        key = f"Authorization: Bearer {api_key}\r\n" if api_key else ""
        self._headers = f"Host: {parts.netloc}\r\n{key}"
        self._idle: list[_Connection] = []

    async def stream(self, path: str, body: dict[str, Any]) -> Answer:
        """A streamed answer, when its last byte has come.

        Raises:
            Failed: the status is not 200, an event tells of an error, or the connection ended before the stream.
        """
        request = self._request("POST", path, _encode(body))
        reading, answer = await self._exchange(request)
        if reading.status != 200:
            raise Failed(f"{reading.status}: {reading.body().decode(errors='replace').strip()[:300]}")
        reading.fill(answer)
        return answer

    async def get(self, path: str) -> bytes:
        """The body of another page."""
        reading, _ = await self._exchange(self._request("GET", path, b""))
        if reading.status != 200:
            raise Failed(f"{path} is answered with {reading.status}")
        return reading.body()

    async def post(self, path: str, body: bytes) -> tuple[int, dict[str, str], bytes]:
        """Status, headers (their names in lower case) and body of an answer, whatever they are.

        Raises:
            Failed: there is none.
        """
        reading, _ = await self._exchange(self._request("POST", path, body))
        return reading.status, reading.headers, reading.body()

    def close(self) -> None:
        """Closes what is kept open between requests."""
        for connection in self._idle:
            connection.transport.close()
        self._idle.clear()

    def _request(self, method: str, path: str, body: bytes) -> bytes:
        head = (
            f"{method} {self._base}{path} HTTP/1.1\r\n{self._headers}"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body

    async def _exchange(self, request: bytes) -> tuple[_Reading, Answer]:
        while True:
            kept = bool(self._idle)
            connection = self._idle.pop() if kept else await self._connect()
            answer = Answer(sent=time.perf_counter())
            try:
                reading = await connection.exchange(request)
            except BaseException as error:
                connection.transport.close()
                if isinstance(error, Failed) and kept and not connection.reading.pieces:
                    continue  # closed by the server while nobody used it
                raise
            if reading.keeps_alive and not connection.transport.is_closing():
                self._idle.append(connection)
            else:
                connection.transport.close()
            return reading, answer

    async def _connect(self) -> _Connection:
        loop = asyncio.get_running_loop()
        try:
            _, connection = await loop.create_connection(_Connection, self._host, self._port, ssl=self._ssl)
        except OSError as error:
            raise Failed(f"cannot connect to {self._host}:{self._port}: {error}") from None
        return connection


class _Reading:
    """State of one response as it comes."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.keeps_alive = True
        self.pieces: list[bytes] = []  # of the body; before the headers are complete, of everything
        self._times = array("d")
        self._counts = array("l")
        self._tail = b""
        self._in_body = self._chunked = False
        self._left: int | None = None

    def take(self, data: bytes) -> bool:
        """The next bytes. Whether they were the last."""
        if not self._in_body:
            self.pieces.append(data)
            data = self._read_headers()
            if not self._in_body:
                return False
            self._tail = b"\r\n"  # a line has just ended
        window = self._tail + data
        events = window.count(EVENT) - (self._tail == EVENT)
        if events:
            self._times.append(time.perf_counter())
            self._counts.append(events)
        self.pieces.append(data)
        self._tail = window[-TAIL:]
        if self._chunked:
            return window.endswith(LAST_CHUNK)
        if self._left is not None:
            self._left -= len(data)
            return self._left <= 0
        return False

    def _read_headers(self) -> bytes:
        """The body's first bytes, once the headers are complete."""
        head, end, rest = b"".join(self.pieces).partition(b"\r\n\r\n")
        if not end:
            if len(head) > HEADERS_MAX:
                raise Failed("the headers have no end")
            return b""
        first, *lines = head.decode("latin-1").split("\r\n")
        try:
            self.status = int(first.split(" ", 2)[1])
        except (IndexError, ValueError):
            raise Failed(f"{first[:80]!r} is no HTTP response") from None
        self.headers = headers = {
            name.strip().lower(): value.strip() for name, _, value in (x.partition(":") for x in lines)
        }
        self._chunked = headers.get("transfer-encoding", "").lower() == "chunked"
        length = headers.get("content-length")
        self._left = int(length) if length is not None and length.isdigit() else None
        self.keeps_alive = headers.get("connection", "").lower() != "close" and (
            self._chunked or self._left is not None
        )
        self._in_body = True
        self.pieces = []
        return rest

    @property
    def complete_at_close(self) -> bool:
        """Tell whether the end of the connection is the end of the body."""
        return self._in_body and not self._chunked and self._left is None

    def body(self) -> bytes:
        """The body, without the chunks' framing."""
        data = b"".join(self.pieces)
        if not self._chunked:
            return data
        parts: list[bytes] = []
        position = 0
        while True:
            line_end = data.index(b"\r\n", position)
            size = int(data[position:line_end].partition(b";")[0], 16)
            if not size:
                return b"".join(parts)
            parts.append(data[line_end + 2 : line_end + 2 + size])
            position = line_end + size + 4

    def fill(self, answer: Answer) -> None:
        """Reads the events.

        Raises:
            Failed: one of them tells of an error, is none, or the last is missing.
        """
        times = [
            moment for moment, count in zip(self._times, self._counts, strict=True) for _ in range(count)
        ]
        lines = [line[5:].strip() for line in self.body().splitlines() if line.startswith(b"data:")]
        if len(lines) != len(times):
            raise Failed(f"{len(times)} events were counted, {len(lines)} read")
        texts: list[str] = []
        for moment, line in zip(times, lines, strict=True):
            if line == b"[DONE]":
                break
            try:
                event = _decode(line)
            except msgspec.DecodeError as error:
                raise Failed(f"an event cannot be read: {error}") from None
            if event.error is not None:
                raise Failed(f"an event tells of an error: {event.error}"[:300])
            if event.usage is not None:
                answer.prompt_tokens = event.usage.prompt_tokens
                answer.output_tokens = event.usage.completion_tokens
            for choice in event.choices:
                text, brings = _text(choice)
                answer.finish_reason = choice.finish_reason or answer.finish_reason
                if brings:
                    if texts:
                        answer.gaps.append(moment - answer.last)
                    else:
                        answer.first = moment
                    answer.last = moment
                    texts.append(text)
        else:
            raise Failed("the stream ended without [DONE]")
        answer.text = "".join(texts)
        answer.output_tokens = answer.output_tokens or len(texts)
        if not texts:
            raise Failed("the stream had no output")


def _text(choice: _Choice) -> tuple[str, bool]:
    """The text of a choice, and whether it has output: a message's opening, which has only a role, has none."""
    if choice.delta is None:
        return choice.text or "", choice.text is not None
    text = (choice.delta.reasoning_content or "") + (choice.delta.content or "")
    return text, bool(text) or choice.finish_reason is not None


class _Connection(asyncio.Protocol):
    """A connection, with at most one exchange at a time."""

    def __init__(self) -> None:
        self.reading = _Reading()
        self.transport: Any = None  # an asyncio.Transport, which uvloop's only resembles
        self._done: asyncio.Future[_Reading] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    async def exchange(self, request: bytes) -> _Reading:
        """Sends, and returns the response when it is complete."""
        self.reading = _Reading()
        self._done = asyncio.get_running_loop().create_future()
        if self.transport.is_closing():
            raise Failed("the connection was closed")
        self.transport.write(request)
        return await self._done

    def data_received(self, data: bytes) -> None:
        try:
            if self.reading.take(data):
                self._end(None)
        except Failed as error:
            self._end(error)

    def connection_lost(self, error: Exception | None) -> None:
        complete = self.reading.complete_at_close
        self._end(None if complete else Failed(f"the connection ended early: {error or 'closed'}"))

    def _end(self, error: Failed | None) -> None:
        done, self._done = self._done, None
        if done is None or done.done():
            return
        if error is None:
            done.set_result(self.reading)
        else:
            done.set_exception(error)
