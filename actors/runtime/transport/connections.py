"""A socket's connections: those that break and are made again, and peers whose handshake fails.

ZeroMQ makes a broken connection again without reporting it, and what was on its way is lost. The socket is
therefore monitored.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable

import zmq
from zmq.utils.monitor import recv_monitor_message

from pageant.actors.runtime.transport.router import RouterSocket

__all__ = ["Connections"]

log = logging.getLogger("pageant.link")

# Time between two warnings about peers whose handshake failed. The socket does not tell their addresses.
COMPLAIN_AGAIN_SECONDS = 60.0
HANDSHAKE_FAILED = zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL


class Connections:
    """Watches the connections of one socket until it is closed.

    Args:
        name: the node that owns the socket.
        on_reconnect: called with the endpoint of a connection that this node made, which broke and has been made
            again.
    """

    def __init__(self, name: str, router: RouterSocket, on_reconnect: Callable[[str], None]) -> None:
        self._name, self._router, self._reconnected = name, router, on_reconnect
        self._loop = asyncio.get_running_loop()
        # Endpoints to which a connection that this node made broke.
        self._cut_off: set[str] = set()
        # The time of the last warning about a failed handshake.
        self._warned_at = -math.inf
        self._monitor = router.monitor(
            zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_SUCCEEDED | HANDSHAKE_FAILED
        )
        self._descriptor = int(self._monitor.getsockopt(zmq.FD))
        self._loop.add_reader(self._descriptor, self._look)
        # The descriptor is edge-triggered: it is silent until the monitor has been found empty.
        self._look()

    def close(self) -> None:
        """Stop watching. Call before the socket is closed."""
        self._loop.remove_reader(self._descriptor)
        self._router.end_monitor()
        self._monitor.close()

    def _look(self) -> None:
        while not self._monitor.closed:
            try:
                event = recv_monitor_message(self._monitor, zmq.NOBLOCK)
            except zmq.Again:
                return
            endpoint = event["endpoint"].decode()
            if event["event"] == zmq.EVENT_DISCONNECTED:
                self._cut_off.add(endpoint)
            elif event["event"] & HANDSHAKE_FAILED:
                self._handshake_failed(endpoint)
            elif endpoint in self._cut_off:
                self._cut_off.remove(endpoint)
                self._reconnected(endpoint)

    def _handshake_failed(self, endpoint: str) -> None:
        """Warn about a peer whose handshake failed; it tries again and again."""
        is_ours = (
            endpoint.rpartition(":")[2] == self._router.endpoint.rpartition(":")[2]
        )  # and not one that we connect to
        if is_ours and self._loop.time() - self._warned_at > COMPLAIN_AGAIN_SECONDS:
            self._warned_at = self._loop.time()
            log.warning(
                "%s: a peer at %s was turned away: its key is another, it has none, or it is no node",
                self._name,
                endpoint,
            )
