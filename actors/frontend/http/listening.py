"""Sockets and connections: where the server listens, and what a connection may do before it is a request.

uvicorn bounds neither the size of a request's head nor the time that it takes; a connection's protocol here
does, for otherwise a few clients that never finish theirs would take up all there are.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from pageant.actors.frontend.http.streams import ABORT
from pageant.protocol.errors import TopologyError

TLS_OPTIONS = ("certfile", "keyfile", "keyfile_password", "ca_certs")
HEAD_BYTES_MAX = 65_536  # of the request line and all headers
HEADERS_MAX = 128
HEAD_SECONDS_MAX = 20.0  # from the first byte of a connection to its first whole head
IDLE_SECONDS_MAX = 60  # between requests
CLOSE_SECONDS = 2  # for the last bytes of answers, when the server stops


def listener(host: str, port: int, *, shared: bool) -> socket.socket:
    """A socket that is bound. Several servers can share a port if all of them say so.

    Raises:
        TopologyError: the address cannot be had.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    found = socket.socket(family, socket.SOCK_STREAM)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if shared:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        found.bind((host, port))
    except OSError as error:
        found.close()
        raise TopologyError(
            "actors.http.options", f"cannot listen on {host}:{port}: {error.strerror}"
        ) from None
    return found


def server(app: Any, *, backlog: int, connections_max: int, tls: dict[str, str | None]) -> uvicorn.Server:
    """uvicorn over an application, with connections of the kind below."""
    return uvicorn.Server(
        uvicorn.Config(
            app,
            http=Connection,
            ws="websockets-sansio",
            lifespan="off",
            log_config=None,
            access_log=False,
            backlog=backlog,
            limit_concurrency=connections_max,
            server_header=False,
            timeout_keep_alive=IDLE_SECONDS_MAX,
            timeout_graceful_shutdown=CLOSE_SECONDS,
            ws_max_size=2**24,
            **{f"ssl_{name}": value for name, value in tls.items() if value is not None},  # type: ignore[arg-type]
        )
    )


class Connection(HttpToolsProtocol):
    """An HTTP connection whose heads are bounded in size and in time."""

    _in_head = True  # from the connection's or the head's begin until the head is whole
    _head_bytes = 0
    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._head_begins()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_is_whole()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_BYTES_MAX and not self.transport.is_closing():
                self.send_400_response("The request's head is too long.")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._head_begins()
        self.scope["state"][ABORT] = self.transport.abort

    def on_headers_complete(self) -> None:
        self._head_is_whole()
        if len(self.headers) > HEADERS_MAX:
            raise ValueError("too many headers")  # which the parser makes an error of its own of: a 400
        super().on_headers_complete()

    def _head_begins(self) -> None:
        self._head_is_whole()
        self._in_head, self._head_bytes = True, 0
        self._head_timer = self.loop.call_later(HEAD_SECONDS_MAX, self.transport.abort)

    def _head_is_whole(self) -> None:
        self._in_head = False
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
