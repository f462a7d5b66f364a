"""Limits of a connection before it is a request.

uvicorn bounds neither the size of a request's head, nor the time of its head and body. The protocol here does:
otherwise a few clients that never finish theirs would take all connections. What is refused here is refused in
the same shape as everything else.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from pageant.actors.http.errors import RETRY_SECONDS, Error, ErrorBody
from pageant.actors.http.streams import ABORT, DIRECT, encode

HEAD_BYTES_MAX = 65_536  # of the request line and all headers
HEADERS_MAX = 128
HEAD_SECONDS_MAX = 20.0  # from the first byte of a connection to its first whole head
BODY_SECONDS_MAX = 60.0  # from there to the end of its body


FULL = encode(
    ErrorBody(
        error=Error(
            message="too many connections are open; try again later", type="server_error", code="overloaded"
        )
    )
)


async def full(scope: Any, receive: Any, send: Any) -> None:
    """The application of those who are too many."""
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(FULL)).encode()),
        (b"retry-after", str(RETRY_SECONDS).encode()),
        (b"connection", b"close"),
    ]
    await send({"type": "http.response.start", "status": 503, "headers": headers})
    await send({"type": "http.response.body", "body": FULL, "more_body": False})


class Body:
    """A streamed body, written past the layers that ASGI puts between: for a token they cost more than the rest.

    Whoever sends by ASGI too must not be at it meanwhile.
    """

    __slots__ = ("_cycle", "_flow", "_transport")

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle, self._transport, self._flow = cycle, cycle.transport, cycle.flow

    @property
    def ready(self) -> bool:
        """See `Direct`."""
        cycle = self._cycle
        return bool(cycle.chunked_encoding) and not (cycle.disconnected or self._flow.write_paused)

    def write(self, body: bytes) -> None:
        """See `Direct`."""
        self._transport.write(b"%x\r\n%b\r\n" % (len(body), body))


class Connection(HttpToolsProtocol):
    """An HTTP connection whose heads are bounded in size, and heads and bodies in time."""

    _head_bytes: int | None = 0  # of the head that is on its way
    _timer: asyncio.TimerHandle | None = None

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self._connections_max, self.limit_concurrency = self.limit_concurrency, None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._head_begins()

    def connection_lost(self, exc: Exception | None) -> None:
        self._within(None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._head_bytes is not None:
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_BYTES_MAX and not self.transport.is_closing():
                self.send_400_response("the request's head is too long")

    def handle_websocket_upgrade(self) -> None:
        self._within(None)
        if self.app is full:
            self._end("503 Service Unavailable", FULL, f"retry-after: {RETRY_SECONDS}\r\n")
            return
        self.app_state = {**self.app_state, ABORT: self.transport.abort}
        super().handle_websocket_upgrade()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._head_begins()
        self.scope["state"][ABORT] = self.transport.abort

    def on_headers_complete(self) -> None:
        self._head_bytes = None
        self._within(BODY_SECONDS_MAX)
        if len(self.headers) > HEADERS_MAX:
            raise ValueError("too many headers")  # which the parser makes an error of its own of: a 400
        if self._connections_max is not None and (
            max(len(self.connections), len(self.tasks)) > self._connections_max
        ):
            self.app = full
        super().on_headers_complete()
        if self.cycle is not None:  # not of a WebSocket
            self.scope["state"][DIRECT] = Body(self.cycle)

    def on_message_complete(self) -> None:
        self._within(None)
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """End a connection whose input is no HTTP: there is no request to answer."""
        error = Error(message=msg, type="invalid_request_error")
        self._end("400 Bad Request", encode(ErrorBody(error=error)))

    def _end(self, status: str, body: bytes, fields: str = "") -> None:
        head = f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\nconnection: close\r\n{fields}"
        self.transport.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        self.transport.close()

    def _head_begins(self) -> None:
        self._head_bytes = 0
        self._within(HEAD_SECONDS_MAX)

    def _within(self, seconds: float | None) -> None:
        """Abort the connection if nothing comes within `seconds`; None ends the limit."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_later(seconds, self.transport.abort) if seconds is not None else None
