"""What becomes of a socket's connections: those that break and are made again, and strangers who speak otherwise.

A connection that breaks is made again by ZeroMQ without a word, and without what was on its way. So the socket is
monitored.
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

COMPLAIN_AGAIN_SECONDS = 60.0  # about one who has no address
MISHEARD = zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL


class Connections:
    """Those of one socket, watched until it is closed.

    Args:
        name: of the node whose it is.
        back_again: is told of the endpoint of a connection that we made, which broke and has been made again.
    """

    def __init__(self, name: str, router: RouterSocket, back_again: Callable[[str], None]) -> None:
        self._name, self._router, self._back_again = name, router, back_again
        self._loop = asyncio.get_running_loop()
        self._cut_off: set[str] = set()  # endpoints to which a connection of ours broke
        self._misheard_at = -math.inf  # when it was last told of a stranger who has no address
        self._monitor = router.monitor(zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_SUCCEEDED | MISHEARD)
        self._descriptor = int(self._monitor.getsockopt(zmq.FD))
        self._loop.add_reader(self._descriptor, self._look)
        self._look()  # it is silent until it has been found empty

    def close(self) -> None:
        """Before the socket is closed."""
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
            elif event["event"] & MISHEARD:
                self._misheard(endpoint)
            elif endpoint in self._cut_off:
                self._cut_off.remove(endpoint)
                self._back_again(endpoint)

    def _misheard(self, endpoint: str) -> None:
        """Somebody speaks otherwise, and tries again and again."""
        is_ours = (
            endpoint.rpartition(":")[2] == self._router.endpoint.rpartition(":")[2]
        )  # and not one that we connect to
        if is_ours and self._loop.time() - self._misheard_at > COMPLAIN_AGAIN_SECONDS:
            self._misheard_at = self._loop.time()
            log.warning(
                "%s: a peer at %s was turned away: its key is another, it has none, or it is no node",
                self._name,
                endpoint,
            )
