"""Launchers: start the processes of nodes. `LocalProcesses` starts them on this host.

A launcher is a small class that a topology names (`launcher: module:Class`). A child sees that its parent is
gone from the end of its standard input, so that no process outlives the root supervisor.

Most of the time for which a small actor is away after its death goes into a new interpreter with its modules:
0.25 s of computing, and four times that where every core is busy. Two standby processes have therefore done
that in advance and wait for their names. There are two because deaths come in groups. They are commands of
their own like any other: a fork would inherit threads, sockets and locks of its parent.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TextIO

from pageant.actors.runtime.classes import load_object
from pageant.protocol.errors import TopologyError

log = logging.getLogger("pageant.launcher")

MODULE = "pageant.actors.runtime.process"
TRACE_CHARACTERS_MAX = 65_536
STANDBYS_MAX = 2
RACE_SECONDS = 0.01

# Held by one of this process's event loops, each in a thread of its own, while it starts a child.
_spawning = threading.Lock()


class Process(Protocol):
    """A node's process."""

    async def wait(self) -> str:
        """Return how the process ended, once it has. Lines after the first are its last traceback, if it left
        one.
        """

    def close_input(self) -> None:
        """Let the process see that its parent is leaving."""

    async def end(self, seconds: float) -> None:
        """Return once the process has ended; kill it after `seconds`."""


@dataclass(frozen=True)
class Joining:
    """Parameters with which a process joins as a node.

    Attributes:
        join: the root's endpoint.
        endpoint: where a node of this host listens, with `{name}` and `{incarnation}` to be filled in.
        arguments: the rest of its command line.
    """

    join: str
    endpoint: str
    arguments: tuple[str, ...] = ()

    def command(self, node: str, incarnation: int, *, elsewhere: bool = False) -> list[str]:
        """Return the command of a node's process.

        Args:
            elsewhere: the node runs on another host, or without an open standard input. It listens where the root's
                host can reach it (whose topology must `listen`), and ends when the root does not answer for too
                long.
        """
        return [sys.executable, "-m", MODULE, *self.given(node, incarnation, elsewhere=elsewhere)]

    def given(self, node: str, incarnation: int, *, elsewhere: bool = False) -> list[str]:
        """Return the arguments of that command alone."""
        given = ["--join", self.join, "--name", node, "--incarnation", str(incarnation)]
        if elsewhere:
            return [*given, "--detached", *self.arguments]
        endpoint = self.endpoint.format(name=node.replace("/", "-"), incarnation=incarnation)
        return [*given, "--endpoint", endpoint, *self.arguments]


@dataclass(frozen=True)
class NodeNeeds:
    """Needs of a node, for launchers that look for room.

    Attributes:
        device: the device that it must have; None is none.
        together: the nodes of a group of executors, this one among them, which are to be close to each other.
    """

    device: str | None = None
    together: tuple[str, ...] = ()


class Launcher:
    """Starts the processes of nodes. A class of your own gets a `Joining`, and the topology's `options` as
    keywords.
    """

    def __init__(self, joining: Joining) -> None:
        self.joining = joining

    def learn(self, node: str, needs: NodeNeeds) -> None:
        """Take note of what a node needs, before it is launched for the first time."""

    async def launch(self, node: str, incarnation: int) -> Process:
        """Return once the process runs.

        Raises:
            OSError: it could not be started.
        """
        raise NotImplementedError

    async def prepare(self, count: int, modules: Sequence[str]) -> None:
        """Prepare for restarts, now that everything is up: up to `count` nodes with these modules may be
        launched soon.
        """

    async def close(self) -> None:
        """End what was prepared. No process is launched any more."""


LAUNCHERS = {"ray": "pageant.actors.runtime.ray_launcher:RayLauncher"}
"""Classes of launchers by the short names that topologies may give them."""


@dataclass(frozen=True)
class LauncherPlan:
    """A launcher of a user's own: its class (`module:Class`, or a plugin's name) and, as JSON, its options."""

    cls: str
    options: str = "{}"

    def make(self, joining: Joining, place: str) -> Launcher:
        """Return the launcher; it starts nothing yet.

        Raises:
            TopologyError: there is no such class, it is no launcher, or it does not take these options.
        """
        cls = load_object(self.cls, place, "launchers")
        if not (isinstance(cls, type) and issubclass(cls, Launcher)):
            raise TopologyError(
                place, f"{self.cls!r} is not a subclass of pageant.actors.runtime.launcher.Launcher"
            )
        try:
            return cls(joining, **json.loads(self.options))
        except (TypeError, ValueError) as error:
            raise TopologyError(place, f"{self.cls} cannot be made with {self.options}: {error}") from None


class LauncherByNode(Launcher):
    """Delegates to a node's own launcher, or to a default one.

    Args:
        make: makes a launcher of a plan.
    """

    def __init__(self, other: Launcher, make: Callable[[LauncherPlan], Launcher]) -> None:
        super().__init__(other.joining)
        self._other, self._make = other, make
        self._made: dict[LauncherPlan, Launcher] = {}
        self._own: dict[str, Launcher] = {}

    def add(self, node: str, plan: LauncherPlan, needs: NodeNeeds) -> None:
        """Launch a node's processes by a launcher of this plan; nodes of one plan have one launcher."""
        if plan not in self._made:
            self._made[plan] = self._make(plan)
        self._own[node] = self._made[plan]
        self._own[node].learn(node, needs)

    async def launch(self, node: str, incarnation: int) -> Process:
        return await self._own.get(node, self._other).launch(node, incarnation)

    async def prepare(self, count: int, modules: Sequence[str]) -> None:
        for launcher in self._all():
            await launcher.prepare(count, modules)

    async def close(self) -> None:
        for launcher in self._all():
            await launcher.close()

    def _all(self) -> list[Launcher]:
        return [self._other, *self._made.values()]


class LocalProcesses(Launcher):
    """Starts nodes as processes on this host; keeps a few standbys."""

    def __init__(self, joining: Joining) -> None:
        super().__init__(joining)
        self._standbys: list[LocalProcess] = []
        # Paths in the topology are relative to this folder, wherever this process goes.
        self._folder = os.getcwd()
        self._making = asyncio.Lock()
        self._closed = False

    async def launch(self, node: str, incarnation: int) -> LocalProcess:
        given = self.joining.given(node, incarnation)
        while self._standbys:
            standby = self._standbys.pop(0)
            if standby.become(given, _environment(self._folder)):
                return standby
            await _discard(standby)
        return await self._start(given)

    async def prepare(self, count: int, modules: Sequence[str]) -> None:
        async with self._making:
            while len(self._standbys) < min(count, STANDBYS_MAX) and not self._closed:
                try:
                    self._standbys.append(await self._start(["--standby", *modules]))
                except OSError as error:
                    log.warning("there is no standby process: %s", error)
                    return

    async def close(self) -> None:
        self._closed = True
        async with self._making:
            standbys, self._standbys = self._standbys, []
            await asyncio.gather(*map(_discard, standbys))

    async def _start(self, given: Sequence[str]) -> LocalProcess:
        environment = _environment(self._folder)
        # Open for as long as the process runs.
        crash_log = tempfile.TemporaryFile("w+", errors="backslashreplace")  # noqa: SIM115
        command = (sys.executable, "-m", MODULE, "--crash-log", str(crash_log.fileno()), *given)
        try:
            process = await _spawn(command, crash_log.fileno(), environment, self._folder)
        except BaseException:
            crash_log.close()
            raise
        return LocalProcess(process, crash_log, environment)


async def _spawn(
    command: Sequence[str], crash_log: int, environment: dict[str, str], folder: str
) -> asyncio.subprocess.Process:
    """Start a child of this process.

    uvloop starts one child at a time, whichever loop of this process asks. Where it refuses a second one, it
    leaves a descriptor open, and closing that loop then waits for ever. The lock keeps that from happening.
    """
    while not _spawning.acquire(blocking=False):  # noqa: ASYNC110 - it is another thread's
        await asyncio.sleep(RACE_SECONDS)
    try:
        return await _spawn_alone(command, crash_log, environment, folder)
    finally:
        _spawning.release()


async def _spawn_alone(
    command: Sequence[str], crash_log: int, environment: dict[str, str], folder: str
) -> asyncio.subprocess.Process:
    # Another event loop of this process may not be ours, and holds no lock.
    while True:
        try:
            return await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.PIPE,
                env=environment,
                cwd=folder,
                start_new_session=True,  # a Ctrl-C is for the parent to act on
                pass_fds=(crash_log,),
            )
        except RuntimeError as error:
            if "another loop" not in str(error):
                raise
            await asyncio.sleep(RACE_SECONDS)


def _environment(folder: str) -> dict[str, str]:
    """Return the environment of a child: what is importable here is importable there. Paths start at `folder`."""
    return os.environ | {"PYTHONPATH": os.pathsep.join(os.path.join(folder, path) for path in sys.path)}


async def _discard(standby: LocalProcess) -> None:
    """End a standby that has no name yet."""
    await asyncio.gather(standby.end(0.0), standby.wait())


class LocalProcess:
    """A child process of this one."""

    def __init__(
        self, process: asyncio.subprocess.Process, crash_log: TextIO, environment: dict[str, str]
    ) -> None:
        self._process, self._crash_log, self._environment = process, crash_log, environment
        self.pid = process.pid

    def become(self, arguments: Sequence[str], environment: dict[str, str]) -> bool:
        """Tell a standby its name. False when it has ended, or was started in another environment than this."""
        stdin = self._process.stdin
        if self._process.returncode is not None or stdin is None or environment != self._environment:
            return False
        stdin.write(json.dumps(arguments).encode() + b"\n")
        return True

    async def wait(self) -> str:
        code, trace = await self._process.wait(), ""
        if not self._crash_log.closed:
            with self._crash_log:
                self._crash_log.seek(0)
                trace = self._crash_log.read(TRACE_CHARACTERS_MAX)
        if code < 0:
            return f"its process {self.pid} was ended by signal {-code} ({signal.strsignal(-code)})\n{trace}"
        return f"its process {self.pid} ended with exit code {code}\n{trace}"

    def close_input(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()

    async def end(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                self._process.kill()
            await self._process.wait()
        self._crash_log.close()
