"""Addresses of nodes: which are allowed, the default one, and whether another node has it already."""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Iterable

# Nothing is sent to this port.
ANY_PORT = 9
LOOPBACK = ("localhost", "127.0.0.1", "::1")
UNSPECIFIED = ("0.0.0.0", "::", "*")


def objection_to(endpoint: str, *, has_keys: bool = False) -> str | None:
    """Return why a node may not listen at an endpoint, or None if it may."""
    scheme, host = _split(endpoint)
    if (scheme == "ipc" and endpoint.removeprefix("ipc://")) or (
        scheme == "tcp" and (host in LOOPBACK or (has_keys and host))
    ):
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
    scheme, host = _split(endpoint)
    if scheme != "tcp":
        return "tcp://127.0.0.1:*"
    own = _address_towards(host)
    return f"tcp://[{own}]:*" if ":" in own else f"tcp://{own}:*"


def own_address(endpoints: Iterable[str]) -> str:
    """Return the address of this host from which the first of a topology's endpoints that other hosts reach is reached.

    Where no other host reaches any of them, it is 127.0.0.1.

    Raises:
        OSError: there is no route to it.
    """
    for endpoint in endpoints:
        scheme, host = _split(endpoint)
        if scheme == "tcp" and host not in (*LOOPBACK, *UNSPECIFIED):
            return _address_towards(host)
    return "127.0.0.1"


def is_private(address: str) -> bool:
    """Tell whether a numeric address is not one of the public network."""
    return ipaddress.ip_address(address).is_private


def _split(endpoint: str) -> tuple[str, str]:
    """Return an endpoint's scheme, and the host of a `tcp://` one."""
    scheme, _, rest = endpoint.partition("://")
    return scheme, rest.rpartition(":")[0].strip("[]")


def _address_towards(host: str) -> str:
    """Return the address of this host from which another is reached."""
    family, _, _, _, address = socket.getaddrinfo(host, ANY_PORT, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(address)  # asks the routing table; a datagram socket sends nothing
        return str(probe.getsockname()[0])


def is_taken(endpoint: str) -> bool:
    """Tell whether a process listens at an `ipc://` endpoint. ZeroMQ would take the endpoint from it without an
    error.
    """
    scheme, _, path = endpoint.partition("://")
    if scheme != "ipc" or not os.path.exists(path):
        return False
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(path) == 0
