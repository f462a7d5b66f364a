"""The ZeroMQ link: one ROUTER socket per node, and the nodes that it has met.

Of two nodes the later connects to the earlier, so that a pair shares one connection. Each knows the other by
the routing id `name#incarnation`. ROUTER_MANDATORY makes a vanished peer an error instead of a silence. Where a
connection broke and both nodes still live, the one that connected is told (`on_broken`) as soon as they are
linked again: what was on its way is lost.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pageant.actors.runtime.platform import Receiver
from pageant.actors.runtime.transport.addresses import objection_to
from pageant.actors.runtime.transport.connections import Connections
from pageant.actors.runtime.transport.errors import LinkRefused, NoAnswer, NotYet
from pageant.actors.runtime.transport.keys import Keys
from pageant.actors.runtime.transport.router import RouterSocket, shown
from pageant.protocol.codec import Codec
from pageant.protocol.compatibility import OwnProtocol, PeerProtocol, own_protocol, summary
from pageant.protocol.envelope import FRAMES_MAX, Header, Mode, decode_header, encode_header
from pageant.protocol.errors import MalformedMessage, ProtocolError
from pageant.protocol.handshake import Hello, Knock, Rejected, Welcome
from pageant.protocol.message import Message

log = logging.getLogger("pageant.link")

HANDSHAKE_SECONDS = 10.0
# The most warnings about strangers in a life.
COMPLAINTS_MAX = 256
# So many lives that are over are still told from strangers.
FORGOTTEN_MAX = 64


@dataclass(frozen=True)
class _Peer:
    """A linked node."""

    node: str
    incarnation: int
    endpoint: str | None
    """Where this node connected to it; None when it connected to this node."""
    protocol: PeerProtocol | None
    """Its protocol, where that differs from this node's."""


@dataclass
class _Waiting:
    """A hello that waits for its answer."""

    welcome: asyncio.Future[Welcome]
    endpoint: str
    protocol: PeerProtocol | None = None
    """The other's protocol, once it has told it."""


class ZmqLink:
    """A node's socket.

    Args:
        name, incarnation: this node's.
        endpoint: where to listen, `ipc://PATH` or `tcp://127.0.0.1:*`.
        receiver: takes the envelopes of linked nodes.
        version: this build's version, told to others and named in refusals.
        keys: the topology's keys; without them it listens to this host alone.
        protocol: this node's protocol; without it, that of this build.

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
        protocol: OwnProtocol | None = None,
    ) -> None:
        self.name, self.incarnation, self.version = name, incarnation, version
        objection = objection_to(endpoint, has_keys=keys is not None)
        if objection is not None:
            raise LinkRefused(objection)
        self._receiver = receiver
        self._protocol = protocol or own_protocol()
        self._loop = asyncio.get_running_loop()
        self._codec = Codec()
        # The routing id of each linked node.
        self._identities: dict[str, bytes] = {}
        # Linked nodes, by routing id.
        self._peers: dict[bytes, _Peer] = {}
        # Hellos of this node that wait for their answers, by routing id.
        self._welcomes: dict[bytes, _Waiting] = {}
        # Routing ids of the lives that were forgotten last: what they still say is refused, and no reason to warn.
        self._forgotten: deque[bytes] = deque(maxlen=FORGOTTEN_MAX)
        # Addresses of strangers that have been logged.
        self._complained: set[str] = set()
        self.issue: Callable[[str, bool], int | None] | None = None
        self.on_broken: Callable[[str, int], None] | None = None
        self._router = RouterSocket(
            _identity(name, incarnation),
            endpoint,
            keys,
            known=self._peers,
            take=self._take,
            on_unhandled=lambda identity: receiver.refuse(
                shown(identity), "it could not be taken: see the log"
            ),
            lost=lambda identity, count: receiver.lost(shown(identity), count),
        )
        self.endpoint = self._router.endpoint
        self._connections = Connections(name, self._router, self._reconnected)

    def close(self) -> None:
        """Send what is queued, for a moment at most, and close the socket."""
        if self._router.closed:
            return
        self._connections.close()
        for waiting in self._welcomes.values():
            if not waiting.welcome.done():
                waiting.welcome.set_exception(LinkRefused(f"{self.name} stopped"))
        self._router.close()

    # Meeting others.

    async def connect(self, node: str, incarnation: int, endpoint: str) -> Welcome:
        """See `Link`."""
        identity = (
            _identity(node, incarnation) + b"@" + os.urandom(8).hex().encode()
        )  # of this connection alone
        self._router.connect(endpoint, identity)
        welcome: asyncio.Future[Welcome] = self._loop.create_future()
        self._welcomes[identity] = _Waiting(welcome, endpoint)
        self._send_link(identity, self._hello())
        try:
            async with asyncio.timeout(HANDSHAKE_SECONDS):
                return await welcome
        except BaseException as error:
            # The call was cancelled after the other node had answered.
            if identity in self._peers:
                self._unlink(identity)
            else:
                self._router.disconnect(endpoint)
            if isinstance(error, TimeoutError):
                seconds = f"{HANDSHAKE_SECONDS:g} s"
                perhaps = "; its key may be another" if self._router.gatekeeper is not None else ""
                raise NoAnswer(f"{node} at {endpoint} did not answer within {seconds}{perhaps}") from None
            raise
        finally:
            del self._welcomes[identity]

    def _hello(self, protocol: bytes = b"") -> Hello:
        return Hello(
            node=self.name,
            incarnation=self.incarnation,
            version=self.version,
            fingerprint=self._protocol.fingerprint,
            endpoint=self.endpoint,
            protocol=protocol,
        )

    def _register(self, identity: bytes, peer: _Peer) -> None:
        former = self._identities.get(peer.node)
        if former is not None and former != identity:
            self._unlink(former)
            self._receiver.replaced(peer.node)
        self._identities[peer.node] = identity
        self._peers[identity] = peer
        self._loop.call_soon(self._receiver.met, peer.node)  # after our answer to its hello

    def _unlink(self, identity: bytes) -> None:
        peer = self._peers.pop(identity)
        del self._identities[peer.node]
        self._receiver.lost(peer.node, self._router.drop(identity))
        if peer.endpoint is not None:
            self._router.disconnect(peer.endpoint)

    def _meet(self, identity: bytes, header: Header, frames: Sequence[Any]) -> None:
        """Handle a handshake envelope, from any sender."""
        message = self._read_handshake(header.kind, bytes(frames[1]), frames[2:])
        waiting = self._welcomes.get(identity)
        if isinstance(message, Knock):
            return
        if isinstance(message, Hello):
            self._answer_hello(identity, message)
        elif waiting is not None and not waiting.welcome.done() and isinstance(message, Welcome | Rejected):
            self._hear_answer(identity, waiting, message)
        else:
            self._receiver.refuse(shown(identity), f"{header.kind} is no part of the handshake here")

    def _read_handshake(self, kind: str, body: bytes, arrays: Sequence[Any]) -> Message:
        """Decode a message of the handshake. A later version's may have more fields."""
        try:
            return self._codec.decode(kind, body, arrays)
        except MalformedMessage:
            return self._codec.decode_known(kind, body, arrays, lambda struct, field, value: None)

    def _hear_answer(self, identity: bytes, waiting: _Waiting, message: Welcome | Rejected) -> None:
        if isinstance(message, Welcome):
            waiting.welcome.set_result(message)
            # Now, since what it says next may be here already.
            peer = _Peer(message.node, message.incarnation, waiting.endpoint, waiting.protocol)
            self._register(identity, peer)
            return
        reason = message.reason
        if message.protocol and waiting.protocol is None:
            waiting.protocol = PeerProtocol(message.version, message.protocol)
            differences = waiting.protocol.differences(self._protocol)
            if not differences:
                self._send_link(identity, self._hello(self._protocol.describe()))
                return
            reason = f"{reason}: {summary(differences)}"
        waiting.welcome.set_exception((NotYet if message.again else LinkRefused)(reason))

    def _answer_hello(self, identity: bytes, hello: Hello) -> None:
        protocol: PeerProtocol | None = None
        if hello.fingerprint != self._protocol.fingerprint:
            if not hello.protocol:
                self._tell_protocol(identity, self._mismatch(hello))
                return
            protocol = PeerProtocol(hello.version, hello.protocol)
        reason = self._objection(identity, hello, protocol)
        issued: int | None = 0
        if reason is None and not hello.incarnation and self.issue is not None:
            issued = self.issue(hello.node, not self._may_be_linked(hello.node))
        if issued is None:
            again = f"another {hello.node} is there, or has not been given up yet"
            self._send_link(identity, Rejected(reason=again, again=True))
            return
        if reason is None and not hello.incarnation and not issued:
            reason = f"no node called {hello.node!r} is expected to join {self.name}"
        if reason is not None:
            self._receiver.refuse(shown(identity), reason)
            self._send_link(identity, Rejected(reason=reason))
            return
        if hello.incarnation:
            self._register(identity, _Peer(hello.node, hello.incarnation, None, protocol))
        welcome = Welcome(
            node=self.name,
            incarnation=self.incarnation,
            version=self.version,
            fingerprint=self._protocol.fingerprint,
            issued=issued,
        )
        self._send_link(identity, welcome)

    def _may_be_linked(self, node: str) -> bool:
        """Tell whether a connection to that node exists. The end of its process closes it; an unplugged cable
        does not.
        """
        identity = self._identities.get(node)
        return identity is not None and self._send_link(identity, Knock())

    def _tell_protocol(self, identity: bytes, reason: str) -> None:
        """Tell this node's protocol, so that the other can say whether it understands it."""
        protocol = self._protocol.describe()
        self._send_link(identity, Rejected(reason=reason, protocol=protocol, version=self.version))

    def _mismatch(self, hello: Hello) -> str:
        return (
            f"protocol mismatch: {hello.node} speaks version {hello.version} ({hello.fingerprint}), "
            f"{self.name} speaks {self.version} ({self._protocol.fingerprint})"
        )

    def _objection(self, identity: bytes, hello: Hello, protocol: PeerProtocol | None) -> str | None:
        if protocol is not None and (differences := protocol.differences(self._protocol)):
            return f"{self._mismatch(hello)}: {summary(differences)}"
        if identity != _identity(hello.node, hello.incarnation):
            return f"{shown(identity)} calls itself {hello.node}#{hello.incarnation}"
        if hello.incarnation < 0 or hello.node == self.name:
            return f"{hello.node}#{hello.incarnation} cannot join {self.name}"
        known = self._peers.get(self._identities.get(hello.node, b""))
        if hello.incarnation and known is not None and known.incarnation > hello.incarnation:
            return f"{hello.node}#{hello.incarnation} has been replaced by #{known.incarnation}"
        return None

    def _send_link(self, identity: bytes, message: Hello | Welcome | Rejected | Knock) -> bool:
        body, _ = self._codec.encode(message)
        header = Header(Mode.LINK, type(message).__name__, "", f"node/{self.name}")
        return self._router.send([identity, encode_header(header), body])

    def _reconnected(self, endpoint: str) -> None:
        for peer in list(self._peers.values()):
            if peer.endpoint == endpoint and self.on_broken is not None:
                self.on_broken(peer.node, peer.incarnation)

    # Sending.

    def send(self, node: str, frames: Sequence[Any]) -> bool:
        """Queue one envelope for a linked node; False when there is no way to it."""
        identity = self._identities.get(node)
        return identity is not None and self._router.send([identity, *frames])

    def is_linked(self, node: str) -> bool:
        """See `Link`."""
        return node in self._identities

    def protocol_of(self, node: str) -> PeerProtocol | None:
        """See `Link`."""
        identity = self._identities.get(node)
        return None if identity is None else self._peers[identity].protocol

    def forget(self, node: str, incarnation: int) -> bool:
        """Forget a life of a node that is over: nothing is sent to it any more, and nothing of it is taken."""
        identity = self._identities.get(node)
        if identity is None or self._peers[identity].incarnation != incarnation:
            return identity is None
        self._unlink(identity)
        self._forgotten.append(identity)
        return True

    # Receiving.

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
        """Refuse a stranger's envelope. It is logged once per address, or a scanner would fill the log."""
        self._receiver.refuse(shown(identity), reason)
        if identity in self._forgotten:
            return
        address = address or shown(identity)
        if address not in self._complained and len(self._complained) < COMPLAINTS_MAX:
            self._complained.add(address)
            log.warning("%s refused what came from %s: %s", self.name, address, reason)


# In a header (a msgpack array) the mode is the second byte.
_LINK_MODE = encode_header(Header(Mode.LINK, "", "", ""))[1:2]


def _identity(node: str, incarnation: int) -> bytes:
    return f"{node}#{incarnation}".encode()
