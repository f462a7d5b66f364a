"""A ROUTER socket driven by the event loop: envelopes in and out, each a list of frames.

`zmq.asyncio` is not used: its futures per message cost more than the sockets do. The socket's descriptor is
edge-triggered, so that it is drained until empty and checked again after every send.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
from collections import deque
from collections.abc import Callable, Container
from typing import Any

import zmq

from pageant.actors.runtime.transport.addresses import is_taken
from pageant.actors.runtime.transport.errors import LinkRefused
from pageant.actors.runtime.transport.keys import Gatekeeper, Keys, connect_with, serve_with
from pageant.protocol.envelope import FRAMES_MAX

__all__ = ["RouterSocket", "shown"]

log = logging.getLogger("pageant.link")

# Envelopes queued per peer within ZeroMQ.
HIGH_WATER_MARK = 10_000
# Envelopes held here per peer while ZeroMQ is full.
BACKLOG_MAX = 100_000
FRAME_BYTES_MAX = 2**31
# Frames up to this size are cheaper to copy than to track.
COPY_BYTES_MAX = 65_536
# Envelopes received before the loop's other tasks get a turn.
TURN = 512
RETRY_SECONDS = 0.001
LINGER_MS = 1000


class RouterSocket:
    """A socket that is bound to one endpoint, and connected to any number of others.

    Args:
        routing_id: the id by which peers that it connects to know it.
        endpoint: where to listen, `ipc://PATH` or `tcp://HOST:PORT`.
        keys: the topology's keys; None is in the clear.
        known: routing ids of peers. For an envelope from another, its source address is passed too.
        take: called with each envelope: the sender's routing id, the other frames, and a stranger's address.
        on_unhandled: called with the sender of an envelope at which `take` raised, which is a bug.
        lost: called with a peer that turns out to be gone, and the number of envelopes that were held for it.

    Raises:
        LinkRefused: it cannot listen there.
    """

    def __init__(
        self,
        routing_id: bytes,
        endpoint: str,
        keys: Keys | None,
        *,
        known: Container[bytes],
        take: Callable[[bytes, list[Any], str], None],
        on_unhandled: Callable[[bytes], None],
        lost: Callable[[bytes, int], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._known, self._take, self._on_unhandled, self._lost = known, take, on_unhandled, lost
        self._context = zmq.Context(io_threads=1)
        self._socket = socket = self._context.socket(zmq.ROUTER)
        socket.setsockopt(zmq.ROUTING_ID, routing_id)
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        socket.setsockopt(zmq.SNDHWM, HIGH_WATER_MARK)
        socket.setsockopt(zmq.RCVHWM, HIGH_WATER_MARK)
        socket.setsockopt(zmq.MAXMSGSIZE, FRAME_BYTES_MAX)
        socket.setsockopt(zmq.LINGER, LINGER_MS)
        if endpoint.startswith("tcp://["):
            socket.setsockopt(zmq.IPV6, 1)
        self.gatekeeper: Gatekeeper | None = None
        if keys is not None:
            self.gatekeeper = Gatekeeper(self._context, keys)
            serve_with(socket, keys)
        try:
            if is_taken(endpoint):
                raise zmq.ZMQError(errno.EADDRINUSE)
            socket.bind(endpoint)
        except zmq.ZMQError as error:
            if self.gatekeeper is not None:
                self.gatekeeper.close()
            self._context.destroy(linger=0)
            raise LinkRefused(f"cannot listen on {endpoint}: {error}") from None
        if keys is not None:
            connect_with(socket, keys)
        self.endpoint = socket.getsockopt_string(zmq.LAST_ENDPOINT).rstrip("\0")
        # Envelopes that ZeroMQ has no room for, by peer, so that a slow peer delays no other.
        self._held: dict[bytes, deque[list[Any]]] = {}
        self._retry_scheduled = False
        self._pump_scheduled = False
        self._descriptor = int(socket.getsockopt(zmq.FD))
        self._loop.add_reader(self._descriptor, self._pump)

    @property
    def closed(self) -> bool:
        """Tell whether `close` was called."""
        return bool(self._socket.closed)

    def close(self) -> None:
        """Send what is queued (for `LINGER_MS` at most) and close the socket."""
        self._loop.remove_reader(self._descriptor)
        self._socket.close()
        if self.gatekeeper is not None:
            self.gatekeeper.close()
        self._context.term()

    # Connections.

    def monitor(self, events: int) -> zmq.Socket[bytes]:
        """Return a socket that reports these events of connections, until `end_monitor`."""
        return self._socket.get_monitor_socket(events)

    def end_monitor(self) -> None:
        """Stop monitoring. Call before the monitor's socket is closed, and this one."""
        self._socket.disable_monitor()

    def connect(self, endpoint: str, routing_id: bytes) -> None:
        """Connect to another socket, which has this id here.

        The id must never have been used before: ZeroMQ aborts the process at one in use.
        """
        self._socket.setsockopt(zmq.CONNECT_ROUTING_ID, routing_id)
        self._socket.connect(endpoint)

    def disconnect(self, endpoint: str) -> None:
        """End a connection that this socket made, if there is one."""
        if not self._socket.closed:
            try:
                self._socket.disconnect(endpoint)
            except zmq.ZMQError as error:  # nothing is left to be let go of
                log.debug("%s: %s", endpoint, error)

    # Sending.

    def drop(self, routing_id: bytes) -> int:
        """Forget the envelopes held for a peer. Return their number."""
        return len(self._held.pop(routing_id, ()))

    def send(self, frames: list[Any]) -> bool:
        """Queue an envelope, whose first frame is the receiver's routing id; False when there is no way to it."""
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
        """Keep an envelope until ZeroMQ takes it; False at the bound."""
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
                log.warning("%s: %d envelopes are lost: %s", shown(identity), len(held), error)
                self._lost(identity, len(held))
                break
            held.popleft()
        del self._held[identity]

    # Receiving.

    def _look_again(self) -> None:
        """Check the socket itself for input: using it may have consumed the descriptor's edge."""
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
                strange = identity not in self._known
                frames, address = self._rest(socket, strange)
                self._take(identity, frames, address)
            # This is a bug of our own. The node goes on for all other peers.
            except Exception:
                log.exception("an envelope from %s could not be taken", shown(identity))
                self._on_unhandled(identity)
        self._look_again()

    @staticmethod
    def _rest(socket: zmq.Socket[bytes], strange: bool) -> tuple[list[Any], str]:
        """Return the other frames of the envelope, and the source address of a stranger's.

        Header and body are copied out, arrays are left where they are, and frames beyond the bound are dropped.
        """
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


def shown(routing_id: bytes) -> str:
    """Return a routing id as printable text, whatever its bytes."""
    return routing_id[:80].decode("utf-8", "backslashreplace")
