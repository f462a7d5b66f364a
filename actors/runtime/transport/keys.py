"""The key of a topology: only nodes that have it may join.

All nodes of a topology share one CURVE key pair (Bernstein's CurveCP, as ZeroMQ has it), in a file that only
its user may read. Every node proves to every other that it has the secret half. A gatekeeper at each socket
turns away peers with another key. A pair for each node would tell nodes apart, which none of them needs, and
would cost a list of keys on every host, kept up by hand.
"""

from __future__ import annotations

import asyncio
import logging
import os
import stat
from pathlib import Path

import msgspec
import zmq
import zmq.utils.z85

from pageant.protocol.errors import TopologyError

log = logging.getLogger("pageant.link")

# Characters of a key in Z85.
KEY_CHARACTERS = 40
ZAP_ADDRESS = "inproc://zeromq.zap.01"


class Keys(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A key pair, in Z85."""

    public: str
    secret: str

    def __repr__(self) -> str:
        return f"Keys({self.public})"  # the secret stays out of logs


def make_keys() -> Keys:
    """Return a new key pair."""
    public, secret = zmq.curve_keypair()
    return Keys(public.decode(), secret.decode())


def write_keys(path: Path, keys: Keys) -> None:
    """Write a file that only this user may read. Raises `FileExistsError`: a key is never overwritten."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(keys)) + b"\n")


def read_keys(path: Path, place: str = "keys") -> Keys:
    """Return the key pair in a file.

    Raises:
        TopologyError: there is none, it is malformed, or others may read it.
    """
    try:
        if stat.S_IMODE(path.stat().st_mode) & 0o077:
            raise TopologyError(place, f"others may read {path}; make it yours alone: chmod 600 {path}")
        keys = msgspec.json.decode(path.read_bytes(), type=Keys)
        secret = zmq.utils.z85.decode(keys.secret) if len(keys.secret) == KEY_CHARACTERS else b""
        right = bool(secret) and zmq.curve_public(keys.secret.encode()).decode() == keys.public
    except OSError as error:
        raise TopologyError(
            place, f"{path} cannot be read: {error.strerror}; `pageant keys` makes one"
        ) from None
    except (msgspec.DecodeError, ValueError, zmq.ZMQError):
        right = False
    if not right:
        raise TopologyError(place, f"{path} is no key; expected a file that `pageant keys` wrote")
    return keys


class Gatekeeper:
    """Answers ZeroMQ's authentication requests for the sockets of a context: only our own key is let in."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], keys: Keys) -> None:
        self._public = zmq.utils.z85.decode(keys.public)
        self._loop = asyncio.get_running_loop()
        self._socket = context.socket(zmq.REP)
        self._socket.linger = 0
        self._socket.bind(ZAP_ADDRESS)
        self._descriptor = int(self._socket.getsockopt(zmq.FD))
        self._loop.add_reader(self._descriptor, self._answer)
        self.refused = 0

    def _answer(self) -> None:
        while not self._socket.closed:
            try:
                question = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            version, number, _, address, _, mechanism, *credentials = question
            known = mechanism == b"CURVE" and credentials == [self._public]
            if not known:
                self.refused += 1
                log.warning(
                    "a peer at %s was turned away: it has another key", address.decode("ascii", "replace")
                )
            status = (b"200", b"OK") if known else (b"400", b"another key")
            self._socket.send_multipart([version, number, *status, b"", b""])

    def close(self) -> None:
        """Close its socket."""
        self._loop.remove_reader(self._descriptor)
        self._socket.close()


def serve_with(socket: zmq.Socket[bytes], keys: Keys) -> None:
    """Require the key of peers that connect to endpoints bound from now on."""
    socket.curve_secretkey, socket.curve_publickey = keys.secret.encode(), keys.public.encode()
    socket.curve_server = 1


def connect_with(socket: zmq.Socket[bytes], keys: Keys) -> None:
    """Use the key for connections made from now on.

    ZeroMQ copies its options when it binds or connects, so that one socket can do both.
    """
    socket.curve_server = 0
    socket.curve_serverkey = keys.public.encode()
