"""What nodes stand on: time, threads, and the ways to other nodes. `Machine` is a real one; the simulator has its own.

Everything that a topology takes from the world beneath it comes through here.
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
from pageant.protocol.handshake import Welcome

if TYPE_CHECKING:
    from pageant.actors.runtime.launcher import Joining, Launcher, LauncherPlan

R = TypeVar("R")


class Receiver(Protocol):
    """Who takes what comes in over a link."""

    def receive(self, node: str, frames: Sequence[Any]) -> None: ...
    def refuse(self, node: str, reason: str) -> None: ...
    def met(self, node: str) -> None: ...
    def replaced(self, node: str) -> None: ...
    def lost(self, node: str, envelopes: int) -> None: ...


class Link(Protocol):
    """A node's way to the others."""

    endpoint: str
    """Where it listens."""

    issue: Callable[[str, bool], int | None] | None
    """The root's: a new incarnation for a node's name, given whether its former life is known to have gone; 0 if none
    is expected, None if that life may not be over."""

    on_broken: Callable[[str, int], None] | None
    """Told of a node, and its incarnation, to which a connection of our making broke: something may be lost."""

    async def connect(self, node: str, incarnation: int, endpoint: str) -> Welcome:
        """Links to an earlier node, from then on known by the name that it gives itself.

        Raises:
            LinkRefused: it speaks another protocol, or (`NoAnswer`) did not answer.
        """

    def send(self, node: str, frames: Sequence[Any]) -> bool:
        """Queues frames for a node; False when it cannot be reached."""

    def is_linked(self, node: str) -> bool:
        """Whether that node has been met, in any of its lives."""

    def forget(self, node: str, incarnation: int) -> bool:
        """That life of a node is over. False when another one has been linked already."""

    def close(self) -> None:
        """Sends what is queued, and lets go of everything."""


class Lane(Protocol):
    """Where an actor's blocking functions run."""

    async def run(self, call: Callable[[], R]) -> R:
        """Runs one, in the order in which they come."""

    def close(self) -> bool:
        """Nothing is run from now on. Returns whether something is running still, which cannot be stopped."""


class Platform(Protocol):
    """What a node stands on."""

    clock: Clock
    pid: int
    """Of this process."""

    def open_lane(self, name: str, threads: int) -> Lane:
        """For functions of one actor, so many at once."""

    def open_link(self, name: str, incarnation: int, endpoint: str, receiver: Receiver) -> Link:
        """A node's socket. Raises `LinkRefused` where it cannot listen."""

    def launcher(self, joining: Joining, own: LauncherPlan | None = None) -> Launcher:
        """What starts the processes of nodes: the topology's own, or what the platform has."""

    @property
    def devices(self) -> tuple[str, ...]:
        """What can be computed on; see `devices.local_devices`."""


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
