"""Simulated processes of nodes: the real `NodeProcess`, in a context of its own that can be killed or stopped."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from contextvars import copy_context
from random import Random
from typing import TYPE_CHECKING, TypeVar

from pageant.actors.runtime.clock import Clock
from pageant.actors.runtime.launcher import Joining, Launcher, LauncherPlan
from pageant.actors.runtime.platform import Lane, Link, Receiver
from pageant.actors.runtime.process import NodeProcess, parse_arguments
from pageant.actors.runtime.simulation.loop import PROCESS, Process, VirtualLoop
from pageant.actors.runtime.simulation.network import Network, SimulatedLink

if TYPE_CHECKING:
    from pageant.actors.runtime.node import Node

R = TypeVar("R")

# Bounds of the time for an interpreter to start.
START_SECONDS = (0.05, 0.4)
# Bounds of the time for a parent to learn of its child's end.
NOTICE_SECONDS = (0.0005, 0.01)


class VirtualClock:
    """A clock that shows the loop's virtual time."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop

    def now(self) -> float:
        return self._loop.time()

    def wall(self) -> float:
        return 1_700_000_000.0 + self._loop.time()


class VirtualLane:
    """Takes as long as is drawn, then calls the function, one after another."""

    def __init__(self, loop: VirtualLoop, seconds: Callable[[], float]) -> None:
        self._loop, self._seconds = loop, seconds
        self._free_at = 0.0
        self.closed = False

    def hang(self) -> None:
        """Never return from the call that runs now, or from the next."""
        self._free_at = math.inf

    async def run(self, call: Callable[[], R]) -> R:
        self._free_at = max(self._loop.time(), self._free_at) + self._seconds()
        if self._free_at < math.inf:
            await asyncio.sleep(self._free_at - self._loop.time())
        if self.closed or self._free_at == math.inf:
            await self._loop.create_future()  # as a pool that was shut down never calls it
        return call()

    def close(self) -> bool:
        self.closed = True
        return self._free_at > self._loop.time()


class SimulatedPlatform:
    """The platform of simulated nodes."""

    def __init__(
        self, loop: VirtualLoop, network: Network, random: Random, offload_seconds: Callable[[Random], float]
    ) -> None:
        self.clock: Clock = VirtualClock(loop)
        self.pid = 0
        self.devices = ("cpu",)
        # The latest process of each node.
        self.processes: dict[str, SimulatedProcess] = {}
        # All processes that ever ran.
        self.lives: list[SimulatedProcess] = []
        self._loop, self._network, self._random = loop, network, random
        self._offload_seconds = offload_seconds
        # The latest lane of each name.
        self._lanes: dict[str, VirtualLane] = {}

    def open_lane(self, name: str, threads: int) -> Lane:
        lane = self._lanes[name] = VirtualLane(self._loop, lambda: self._offload_seconds(self._random))
        return lane

    def hang(self, actor: str) -> Callable[[], None] | None:
        """Return the function that lets an actor hang in its blocking functions; None if it has not called any."""
        lane = self._lanes.get(f"pageant {actor}")
        return None if lane is None or lane.closed else lane.hang

    def open_link(self, name: str, incarnation: int, endpoint: str, receiver: Receiver) -> Link:
        return SimulatedLink(self._network, name, incarnation, receiver)

    def launcher(self, joining: Joining, own: LauncherPlan | None = None) -> Launcher:
        return SimulatedProcesses(joining, self, self._loop, self._random)


class SimulatedProcesses(Launcher):
    """The launcher of simulated processes."""

    def __init__(
        self, joining: Joining, platform: SimulatedPlatform, loop: VirtualLoop, random: Random
    ) -> None:
        super().__init__(joining)
        self._platform, self._loop, self._random = platform, loop, random

    async def launch(self, node: str, incarnation: int) -> SimulatedProcess:
        process = SimulatedProcess(self._loop, node, incarnation, self._random)
        self._platform.processes[node] = process
        self._platform.lives.append(process)
        options = parse_arguments(self.joining.given(node, incarnation))
        context = copy_context()
        context.run(PROCESS.set, process)
        self._loop.create_task(process.run(options, self._platform), context=context, name=f"process {node}")
        return process


class SimulatedProcess(Process):
    """One life of a node's process."""

    def __init__(self, loop: VirtualLoop, node: str, incarnation: int, random: Random) -> None:
        super().__init__(f"{node}#{incarnation}")
        self.node_name = node
        self._loop, self._random = loop, random
        self._ended: asyncio.Future[str] = loop.create_future()
        self._outside = copy_context()  # its parent's
        self._inside: NodeProcess | None = None

    async def run(self, options: object, platform: SimulatedPlatform) -> None:
        """Run the process from its start to its end."""
        await asyncio.sleep(self._random.uniform(*START_SECONDS))
        incarnation = options.incarnation  # type: ignore[attr-defined]
        self._inside = NodeProcess(options, incarnation, platform)  # type: ignore[arg-type]
        reason = "its process ended"
        try:
            await self._inside.run()
        except Exception as error:
            reason = f"its process failed: {type(error).__name__}: {error}"
        self._end(reason)

    @property
    def node(self) -> Node | None:
        """Return the node in it, once there is one."""
        return self._inside.node if self._inside is not None else None

    def kill(self) -> None:
        """End the process as `kill -9` does."""
        self._end("its process was ended by signal 9")

    def _end(self, reason: str) -> None:
        if not self.dead:
            self.dead = True
            delay = self._random.uniform(*NOTICE_SECONDS)
            self._loop.call_later(delay, self._notice, reason, context=self._outside)

    def _notice(self, reason: str) -> None:
        if not self._ended.done():
            self._ended.set_result(reason)

    # As its launcher sees it.

    async def wait(self) -> str:
        return await asyncio.shield(self._ended)

    def close_input(self) -> None:
        if self._inside is not None and not self.dead:
            self._inside.stop()
        elif not self.dead:
            self.kill()

    async def end(self, seconds: float) -> None:
        await asyncio.wait([self._ended], timeout=seconds)
        if not self._ended.done():
            self.kill()
            await asyncio.shield(self._ended)
