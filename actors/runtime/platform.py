"""Platforms of nodes: time, threads, and links to other nodes. `Machine` is a real one; the simulator has its
own.

A topology takes everything that it needs from the world through here.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from pageant.actors.runtime.clock import Clock, MonotonicClock
from pageant.actors.runtime.devices import local_devices
from pageant.actors.runtime.version import VERSION
from pageant.protocol.compatibility import PeerProtocol
from pageant.protocol.handshake import Welcome

if TYPE_CHECKING:
    from pageant.actors.runtime.launcher import Joining, Launcher, LauncherPlan

R = TypeVar("R")


class Receiver(Protocol):
    """Takes the envelopes and events of a link."""

    def receive(self, node: str, frames: Sequence[Any]) -> None: ...
    def refuse(self, node: str, reason: str) -> None: ...
    def met(self, node: str) -> None: ...
    def replaced(self, node: str) -> None: ...
    def lost(self, node: str, envelopes: int) -> None: ...


class Link(Protocol):
    """A node's connections to the others."""

    endpoint: str
    """The address that it listens on."""

    issue: Callable[[str, bool], int | None] | None
    """Set at the root: returns a new incarnation for a node's name, given whether its former life is known to
    be gone; 0 if no such node is expected, None if that life may not be over.
    """

    on_broken: Callable[[str, int], None] | None
    """Called with a node, and its incarnation, to which a connection that this node made broke: messages may be
    lost.
    """

    async def connect(self, node: str, incarnation: int, endpoint: str) -> Welcome:
        """Link to an earlier node, which is known by the name that it gives itself from then on.

        Raises:
            LinkRefused: it speaks another protocol, or (`NoAnswer`) did not answer.
        """

    def send(self, node: str, frames: Sequence[Any]) -> bool:
        """Queue frames for a node; False when it cannot be reached."""

    def is_linked(self, node: str) -> bool:
        """Tell whether that node has been linked, in any of its lives."""

    def protocol_of(self, node: str) -> PeerProtocol | None:
        """Return the protocol of a linked node, if it is of another version."""

    def forget(self, node: str, incarnation: int) -> bool:
        """Forget a life of a node that is over. False when another life has been linked already."""

    def close(self) -> None:
        """Send what is queued, and release all sockets."""


class Lane(Protocol):
    """Runs an actor's blocking functions."""

    async def run(self, call: Callable[[], R]) -> R:
        """Run a function, in the order in which they come."""

    def close(self) -> bool:
        """Run nothing any more. Return whether a function still runs, which cannot be stopped."""


class Platform(Protocol):
    """The clock, threads, sockets and processes that a node uses."""

    clock: Clock
    pid: int
    """The id of this process."""

    def open_lane(self, name: str, threads: int) -> Lane:
        """Open a lane for functions of one actor, `threads` of which may run at once."""

    def open_link(self, name: str, incarnation: int, endpoint: str, receiver: Receiver) -> Link:
        """Open a node's socket. Raises `LinkRefused` where it cannot listen."""

    def launcher(self, joining: Joining, own: LauncherPlan | None = None) -> Launcher:
        """Return the launcher of nodes' processes: the topology's own, or the platform's."""

    @property
    def devices(self) -> tuple[str, ...]:
        """Return the devices of this host; see `devices.local_devices`."""


class Machine:
    """The host: its clock, its threads, its sockets and processes.

    Args:
        keys: the file with the topology's key, where it is to have one.
    """

    def __init__(self, keys: str | None = None) -> None:
        self.clock: Clock = MonotonicClock()
        self.pid = os.getpid()
        self._keys = keys

    def open_lane(self, name: str, threads: int) -> Lane:
        return _Threads(name, threads)

    def open_link(self, name: str, incarnation: int, endpoint: str, receiver: Receiver) -> Link:
        from pageant.actors.runtime.transport.keys import read_keys
        from pageant.actors.runtime.transport.zeromq import ZmqLink

        keys = read_keys(Path(self._keys)) if self._keys is not None else None
        return ZmqLink(name, incarnation, endpoint, receiver, VERSION, keys)

    def launcher(self, joining: Joining, own: LauncherPlan | None = None) -> Launcher:
        from pageant.actors.runtime.launcher import LocalProcesses

        return LocalProcesses(joining) if own is None else own.make(joining, "launcher")

    @property
    def devices(self) -> tuple[str, ...]:
        return local_devices()


class _Threads:
    """A lane of threads, started when they are first needed."""

    def __init__(self, name: str, threads: int) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._calls: set[Future[Any]] = set()

    async def run(self, call: Callable[[], R]) -> R:
        future = self._pool.submit(call)
        self._calls.add(future)
        future.add_done_callback(self._calls.discard)
        return await asyncio.wrap_future(future)

    def close(self) -> bool:
        self._pool.shutdown(wait=False, cancel_futures=True)
        return any(future.running() for future in list(self._calls))
