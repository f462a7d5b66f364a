"""The ZeroMQ link: one ROUTER socket per node, bound and connected, driven by the event loop directly.

Of two nodes the later connects to the earlier, so that a pair shares one connection; each knows the other
by the routing id `name#incarnation`, and ROUTER_MANDATORY makes a vanished peer an error instead of a
silence. `zmq.asyncio` is not used: its per-message futures cost more than the sockets do. The socket's
descriptor is edge-triggered, so it is drained until empty, and looked at again after every send.

A connection that breaks is made again by ZeroMQ without a word, and without what was on its way. So the socket is
monitored: of two nodes that still live, the one that connected is told (`on_broken`) as soon as they are back.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import math
import os
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import zmq
from zmq.utils.monitor import recv_monitor_message

from pageant.actors.runtime.platform import Receiver
from pageant.actors.runtime.transport.addresses import is_taken
from pageant.actors.runtime.transport.errors import LinkRefused, NoAnswer, NotYet
from pageant.actors.runtime.transport.keys import Gatekeeper, Keys, connect_with, serve_with
from pageant.protocol.codec import Codec
from pageant.protocol.envelope import FRAMES_MAX, Header, Mode, decode_header, encode_header
from pageant.protocol.errors import ProtocolError
from pageant.protocol.handshake import Hello, Knock, Rejected, Welcome, fingerprint

log = logging.getLogger("pageant.link")

HIGH_WATER_MARK = 10_000  # envelopes queued per peer within ZeroMQ
BACKLOG_MAX = 100_000  # envelopes held here per node while ZeroMQ is full
FRAME_BYTES_MAX = 2**31
COPY_BYTES_MAX = 65_536  # frames up to this size are cheaper to copy than to track
TURN = 512  # envelopes taken in before the loop's other tasks get a turn
RETRY_SECONDS = 0.001
HANDSHAKE_SECONDS = 10.0
COMPLAINTS_MAX = 256  # about strangers, in a life
COMPLAIN_AGAIN_SECONDS = 60.0  # about one who has no address
LINGER_MS = 1000
MISHEARD = zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
LOOPBACK = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True)
class _Peer:
    """A linked node. `endpoint` is where we connected to it; None when it connected to us."""

    node: str
    incarnation: int
    endpoint: str | None


@dataclass(frozen=True)
class _Waiting:
    """Who said hello at an endpoint, and waits for the answer."""

    welcome: asyncio.Future[Welcome]
    endpoint: str


def objection_to(endpoint: str, *, has_keys: bool = False) -> str | None:
    """Why a node may not listen there, or None."""
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


class ZmqLink:
    """A node's socket.

    Args:
        name, incarnation: this node's.
        endpoint: where to listen, `ipc://PATH` or `tcp://127.0.0.1:*`.
        receiver: takes the envelopes of linked nodes.
        version: this build's version, told to others and named in refusals.
        keys: of the topology; without them it listens to this host alone.

    Raises:
        LinkRefused: it cannot listen there.
    """

    def __init__(
        self,
        name: str,
        incarnation: int,
        endpoint: str,
        receiver: Receiver,
        version: str,
        keys: Keys | None = None,
    ) -> None:
        self.name, self.incarnation, self.version = name, incarnation, version
        objection = objection_to(endpoint, has_keys=keys is not None)
        if objection is not None:
            raise LinkRefused(objection)
        self._receiver = receiver
        self._loop = asyncio.get_running_loop()
        self._codec = Codec()
        self._context = zmq.Context(io_threads=1)
        self._socket = socket = self._context.socket(zmq.ROUTER)
        socket.setsockopt(zmq.ROUTING_ID, _identity(name, incarnation))
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        socket.setsockopt(zmq.SNDHWM, HIGH_WATER_MARK)
        socket.setsockopt(zmq.RCVHWM, HIGH_WATER_MARK)
        socket.setsockopt(zmq.MAXMSGSIZE, FRAME_BYTES_MAX)
        socket.setsockopt(zmq.LINGER, LINGER_MS)
        if endpoint.startswith("tcp://["):
            socket.setsockopt(zmq.IPV6, 1)
        self._gatekeeper: Gatekeeper | None = None
        if keys is not None:
            self._gatekeeper = Gatekeeper(self._context, keys)
            serve_with(socket, keys)
        try:
            if is_taken(endpoint):
                raise zmq.ZMQError(errno.EADDRINUSE)
            socket.bind(endpoint)
        except zmq.ZMQError as error:
            if self._gatekeeper is not None:
                self._gatekeeper.close()
            self._context.destroy(linger=0)
            raise LinkRefused(f"cannot listen on {endpoint}: {error}") from None
        if keys is not None:
            connect_with(socket, keys)
        self.endpoint = socket.getsockopt_string(zmq.LAST_ENDPOINT).rstrip("\0")
        self._cut_off: set[str] = set()  # endpoints to which a connection of ours broke
        self._identities: dict[str, bytes] = {}
        self._peers: dict[bytes, _Peer] = {}
        self._welcomes: dict[bytes, _Waiting] = {}
        self._held: dict[bytes, deque[list[Any]]] = {}  # by peer, so that a slow one delays no other
        self._complained: set[str] = set()  # addresses of strangers
        self._misheard_at = -math.inf  # when it was last told of a stranger who has no address
        self._retry_scheduled = False
        self._pump_scheduled = False
        self.issue: Callable[[str, bool], int | None] | None = None
        self.on_broken: Callable[[str, int], None] | None = None
        self._descriptor = int(socket.getsockopt(zmq.FD))
        self._loop.add_reader(self._descriptor, self._pump)
        self._monitor = socket.get_monitor_socket(
            zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_SUCCEEDED | MISHEARD
        )
        self._monitor_descriptor = int(self._monitor.getsockopt(zmq.FD))
        self._loop.add_reader(self._monitor_descriptor, self._watch_connections)
        self._watch_connections()  # it is silent until it has been found empty

    def close(self) -> None:
        """Sends what is queued (for `LINGER_MS` at most) and lets go of the socket."""
        if self._socket.closed:
            return
        self._loop.remove_reader(self._descriptor)
        self._loop.remove_reader(self._monitor_descriptor)
        self._socket.disable_monitor()
        self._monitor.close()
        for waiting in self._welcomes.values():
            if not waiting.welcome.done():
                waiting.welcome.set_exception(LinkRefused(f"{self.name} stopped"))
        self._socket.close()
        if self._gatekeeper is not None:
            self._gatekeeper.close()
        self._context.term()

    # Meeting others.

    async def connect(self, node: str, incarnation: int, endpoint: str) -> Welcome:
        """See `Link`."""
        # Our own name for the connection. Never used before: ZeroMQ aborts the process at one in use.
        identity = _identity(node, incarnation) + b"@" + os.urandom(8).hex().encode()
        self._socket.setsockopt(zmq.CONNECT_ROUTING_ID, identity)
        self._socket.connect(endpoint)
        welcome: asyncio.Future[Welcome] = self._loop.create_future()
        self._welcomes[identity] = _Waiting(welcome, endpoint)
        hello = Hello(
            node=self.name,
            incarnation=self.incarnation,
            version=self.version,
            fingerprint=fingerprint(),
            endpoint=self.endpoint,
        )
        self._send_link(identity, hello)
        try:
            async with asyncio.timeout(HANDSHAKE_SECONDS):
                return await welcome
        except BaseException as error:
            if identity in self._peers:  # we are cancelled, and were welcome
                self._let_go(identity)
            else:
                self._disconnect(endpoint)
            if isinstance(error, TimeoutError):
                seconds = f"{HANDSHAKE_SECONDS:g} s"
                perhaps = "; its key may be another" if self._gatekeeper is not None else ""
                raise NoAnswer(f"{node} at {endpoint} did not answer within {seconds}{perhaps}") from None
            raise
        finally:
            del self._welcomes[identity]

    def _disconnect(self, endpoint: str) -> None:
        if not self._socket.closed:
            try:
                self._socket.disconnect(endpoint)
            except zmq.ZMQError as error:  # nothing is left to be let go of
                log.debug("%s: %s", endpoint, error)

    def _register(self, identity: bytes, peer: _Peer) -> None:
        former = self._identities.get(peer.node)
        if former is not None and former != identity:
            self._let_go(former)
            self._receiver.replaced(peer.node)
        self._identities[peer.node] = identity
        self._peers[identity] = peer
        self._loop.call_soon(self._receiver.met, peer.node)  # after our answer to its hello

    def _let_go(self, identity: bytes) -> None:
        peer = self._peers.pop(identity)
        del self._identities[peer.node]
        self._receiver.lost(peer.node, len(self._held.pop(identity, ())))
        if peer.endpoint is not None:
            self._disconnect(peer.endpoint)

    def _meet(self, identity: bytes, header: Header, frames: Sequence[Any]) -> None:
        """A handshake envelope, from whoever it may be."""
        message = self._codec.decode(header.kind, bytes(frames[1]), frames[2:])
        waiting = self._welcomes.get(identity)
        if isinstance(message, Knock):
            return
        if isinstance(message, Hello):
            self._answer_hello(identity, message)
        elif waiting is not None and not waiting.welcome.done() and isinstance(message, Welcome):
            waiting.welcome.set_result(message)
            # Now, since what it says next may be here already.
            self._register(identity, _Peer(message.node, message.incarnation, waiting.endpoint))
        elif waiting is not None and not waiting.welcome.done() and isinstance(message, Rejected):
            waiting.welcome.set_exception((NotYet if message.again else LinkRefused)(message.reason))
        else:
            self._receiver.refuse(_shown(identity), f"{header.kind} is no part of the handshake here")

    def _answer_hello(self, identity: bytes, hello: Hello) -> None:
        reason = self._objection(identity, hello)
        issued: int | None = 0
        if reason is None and not hello.incarnation and self.issue is not None:
            issued = self.issue(hello.node, not self._may_be_there(hello.node))
        if issued is None:
            again = f"another {hello.node} is there, or has not been given up yet"
            self._send_link(identity, Rejected(reason=again, again=True))
            return
        if reason is None and not hello.incarnation and not issued:
            reason = f"no node called {hello.node!r} is expected to join {self.name}"
        if reason is not None:
            self._receiver.refuse(_shown(identity), reason)
            self._send_link(identity, Rejected(reason=reason))
            return
        if hello.incarnation:
            self._register(identity, _Peer(hello.node, hello.incarnation, None))
        welcome = Welcome(
            node=self.name,
            incarnation=self.incarnation,
            version=self.version,
            fingerprint=fingerprint(),
            issued=issued,
        )
        self._send_link(identity, welcome)

    def _may_be_there(self, node: str) -> bool:
        """Whether a connection to that node stands. The end of its process closes it; a cable that is out does not."""
        identity = self._identities.get(node)
        return identity is not None and self._send_link(identity, Knock())

    def _objection(self, identity: bytes, hello: Hello) -> str | None:
        if hello.fingerprint != fingerprint():
            return (
                f"protocol mismatch: {hello.node} speaks version {hello.version} ({hello.fingerprint}), "
                f"{self.name} speaks {self.version} ({fingerprint()})"
            )
        if identity != _identity(hello.node, hello.incarnation):
            return f"{_shown(identity)} calls itself {hello.node}#{hello.incarnation}"
        if hello.incarnation < 0 or hello.node == self.name:
            return f"{hello.node}#{hello.incarnation} cannot join {self.name}"
        known = self._peers.get(self._identities.get(hello.node, b""))
        if hello.incarnation and known is not None and known.incarnation > hello.incarnation:
            return f"{hello.node}#{hello.incarnation} has been replaced by #{known.incarnation}"
        return None

    def _send_link(self, identity: bytes, message: Hello | Welcome | Rejected | Knock) -> bool:
        body, _ = self._codec.encode(message)
        header = Header(Mode.LINK, type(message).__name__, "", f"node/{self.name}")
        return self._send([identity, encode_header(header), body])

    def _watch_connections(self) -> None:
        while not self._monitor.closed:
            try:
                event = recv_monitor_message(self._monitor, zmq.NOBLOCK)
            except zmq.Again:
                return
            endpoint = event["endpoint"].decode()
            if event["event"] == zmq.EVENT_DISCONNECTED:
                self._cut_off.add(endpoint)
            elif event["event"] & MISHEARD:
                self._misheard(endpoint)
            elif endpoint in self._cut_off:
                self._cut_off.remove(endpoint)
                self._back_again(endpoint)

    def _misheard(self, endpoint: str) -> None:
        """Somebody speaks otherwise, and tries again and again."""
        is_ours = (
            endpoint.rpartition(":")[2] == self.endpoint.rpartition(":")[2]
        )  # and not one that we connect to
        if is_ours and self._loop.time() - self._misheard_at > COMPLAIN_AGAIN_SECONDS:
            self._misheard_at = self._loop.time()
            log.warning(
                "%s: a peer at %s was turned away: its key is another, it has none, or it is no node",
                self.name,
                endpoint,
            )

    def _back_again(self, endpoint: str) -> None:
        for peer in list(self._peers.values()):
            if peer.endpoint == endpoint and self.on_broken is not None:
                self.on_broken(peer.node, peer.incarnation)

    # Sending.

    def send(self, node: str, frames: Sequence[Any]) -> bool:
        """Queues one envelope for a linked node; False when there is no way to it."""
        identity = self._identities.get(node)
        return identity is not None and self._send([identity, *frames])

    def is_linked(self, node: str) -> bool:
        """See `Link`."""
        return node in self._identities

    def forget(self, node: str, incarnation: int) -> bool:
        """A life of a node is over: nothing is sent to it any more, and nothing of it believed."""
        identity = self._identities.get(node)
        if identity is None or self._peers[identity].incarnation != incarnation:
            return identity is None
        self._let_go(identity)
        return True

    def _send(self, frames: list[Any]) -> bool:
        if self._socket.closed:
            return False
        if frames[0] in self._held:
            return self._hold(frames)
        try:
            self._send_now(frames)
        except zmq.Again:
            return self._hold(frames)
        except zmq.ZMQError as error:
            if error.errno == zmq.EHOSTUNREACH:
                return False
            raise
        self._look_again()
        return True

    def _send_now(self, frames: list[Any]) -> None:
        socket, last = self._socket, len(frames) - 1
        for index, frame in enumerate(frames):
            flags = zmq.NOBLOCK | (zmq.SNDMORE if index < last else 0)
            copy = isinstance(frame, bytes) or frame.nbytes <= COPY_BYTES_MAX
            socket.send(frame if copy else memoryview(frame).cast("B"), flags, copy=copy)

    def _hold(self, frames: list[Any]) -> bool:
        """Keeps an envelope until ZeroMQ takes it; False at the bound."""
        held = self._held.setdefault(frames[0], deque())
        if len(held) >= BACKLOG_MAX:
            return False
        held.append(frames)
        self._retry_later()
        return True

    def _retry_later(self) -> None:
        if not self._retry_scheduled:
            self._retry_scheduled = True
            self._loop.call_later(RETRY_SECONDS, self._send_all_held)

    def _send_all_held(self) -> None:
        self._retry_scheduled = False
        if self._socket.closed:
            return
        for identity in list(self._held):
            self._send_held(identity, self._held[identity])
        if self._held:
            self._retry_later()
        self._look_again()

    def _send_held(self, identity: bytes, held: deque[list[Any]]) -> None:
        while held:
            try:
                self._send_now(held[0])
            except zmq.Again:
                return
            except zmq.ZMQError as error:
                log.warning("%s: %d envelopes are lost: %s", _shown(identity), len(held), error)
                self._receiver.lost(_shown(identity), len(held))
                break
            held.popleft()
        del self._held[identity]

    # Receiving.

    def _look_again(self) -> None:
        """Asks the socket itself whether something came: using it may have eaten the descriptor's edge."""
        if self._pump_scheduled or self._socket.closed:
            return
        if int(self._socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            self._pump_scheduled = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        self._pump_scheduled = False
        socket = self._socket
        for _ in range(TURN):
            if socket.closed:
                return
            try:
                identity = socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            try:
                strange = identity not in self._peers
                frames, address = self._rest(socket, strange)
                self._take(identity, frames, address)
            except Exception:  # our own bug; the node goes on for everybody else
                log.exception("an envelope from %s could not be taken", _shown(identity))
                self._receiver.refuse(_shown(identity), "it could not be taken: see the log")
        self._look_again()

    @staticmethod
    def _rest(socket: zmq.Socket[bytes], strange: bool) -> tuple[list[Any], str]:
        """The other frames of the envelope; header and body copied out, arrays left where they are, and
        those beyond the bound dropped. Of a stranger's also where it came from."""
        frames: list[Any] = []
        address = ""
        while socket.getsockopt(zmq.RCVMORE):
            if strange and not frames:
                first = socket.recv(copy=False)
                frames.append(first.bytes)
                with contextlib.suppress(zmq.ZMQError):  # it may be gone by now
                    address = str(first.get("Peer-Address"))
            elif len(frames) < 2:
                frames.append(socket.recv())
            elif len(frames) <= FRAMES_MAX:
                frames.append(socket.recv(copy=False).buffer)
            else:
                socket.recv(copy=False)
        return frames, address

    def _take(self, identity: bytes, frames: list[Any], address: str) -> None:
        peer = self._peers.get(identity)
        if peer is not None and (not frames or frames[0][1:2] != _LINK_MODE):
            self._receiver.receive(peer.node, frames)
            return
        try:
            header = decode_header(frames[0]) if 2 <= len(frames) <= FRAMES_MAX else None
            if header is None or header.mode is not Mode.LINK:
                self._refuse(identity, address, "not a handshake, and the node is not known")
                return
            self._meet(identity, header, frames)
        except ProtocolError as error:
            self._refuse(identity, address, str(error))

    def _refuse(self, identity: bytes, address: str, reason: str) -> None:
        """A stranger's envelope goes no further. It is told of once per address, or a scanner would fill the log."""
        self._receiver.refuse(_shown(identity), reason)
        address = address or _shown(identity)
        if address not in self._complained and len(self._complained) < COMPLAINTS_MAX:
            self._complained.add(address)
            log.warning("%s refused what came from %s: %s", self.name, address, reason)


# In a header (a msgpack array) the mode is the second byte.
_LINK_MODE = encode_header(Header(Mode.LINK, "", "", ""))[1:2]


def _identity(node: str, incarnation: int) -> bytes:
    return f"{node}#{incarnation}".encode()


def _shown(identity: bytes) -> str:
    return identity[:80].decode("utf-8", "backslashreplace")
