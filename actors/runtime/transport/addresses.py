"""Addresses of nodes: which are allowed, the default one, and whether another node has it already."""

from __future__ import annotations

import os
import socket

# Nothing is sent to this port.
ANY_PORT = 9
LOOPBACK = ("localhost", "127.0.0.1", "::1")


def objection_to(endpoint: str, *, has_keys: bool = False) -> str | None:
    """Return why a node may not listen at an endpoint, or None if it may."""
    scheme, _, rest = endpoint.partition("://")
    host = rest.rpartition(":")[0].strip("[]")
    if (scheme == "ipc" and rest) or (scheme == "tcp" and (host in LOOPBACK or (has_keys and host))):
        return None
    if has_keys:
        return f"found {endpoint!r}; expected ipc://PATH or tcp://HOST:PORT"
    return (
        f"found {endpoint!r}; expected ipc://PATH or tcp://127.0.0.1:PORT: to be reached by other hosts it needs "
        "keys; `pageant keys FILE` makes them, and `keys: FILE` (`--keys FILE`) names them"
    )


def endpoint_towards(endpoint: str) -> str:
    """Return a `tcp://` endpoint with a free port, on the address from which `endpoint` is reached.

    Raises:
        OSError: there is no route to it.
    """
    scheme, _, rest = endpoint.partition("://")
    host = rest.rpartition(":")[0].strip("[]")
    if scheme != "tcp":
        return "tcp://127.0.0.1:*"
    family, _, _, _, address = socket.getaddrinfo(host, ANY_PORT, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(address)  # asks the routing table; a datagram socket sends nothing
        own = probe.getsockname()[0]
    return f"tcp://[{own}]:*" if ":" in own else f"tcp://{own}:*"


def is_taken(endpoint: str) -> bool:
    """Tell whether a process listens at an `ipc://` endpoint. ZeroMQ would take the endpoint from it without an
    error.
    """
    scheme, _, path = endpoint.partition("://")
    if scheme != "ipc" or not os.path.exists(path):
        return False
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(path) == 0
