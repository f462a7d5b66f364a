"""Sockets of the server, and uvicorn as it serves there."""

from __future__ import annotations

import contextlib
import resource
import socket
from typing import Any

import uvicorn

from pageant.actors.http.connection import Connection
from pageant.protocol.errors import TopologyError

TLS_OPTIONS = ("certfile", "keyfile", "keyfile_password", "ca_certs")
IDLE_SECONDS_MAX = 60  # between requests
FILES_BESIDE = 1024  # connections: what else this process may have open
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
    """uvicorn over an application, with connections that are bounded."""
    _allow_files(connections_max + FILES_BESIDE)
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


def _allow_files(count: int) -> None:
    """A connection is a file, of which the system lets few be open unless it is asked for more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = count if hard == resource.RLIM_INFINITY else min(count, hard)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
