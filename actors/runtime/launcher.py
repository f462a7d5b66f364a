"""How a node's process comes to be. A launcher is a small class, named in a topology (`launcher: module:Class`);
`LocalProcesses` starts processes on this host.

The child learns that its parent is gone from the end of its standard input, so that no process outlives
the root supervisor.

Most of what a small actor is away for after its death is a new interpreter with its modules: 0.25 s of computing, and
four times that where every core is busy. So two processes have done that in advance, and wait to be told who they
are: deaths come in company. They are commands of their own like any other: a fork would take over threads, sockets
and locks of whoever made it.
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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TextIO

from pageant.actors.runtime.classes import load_object
from pageant.protocol.errors import TopologyError

log = logging.getLogger("pageant.launcher")

MODULE = "pageant.actors.runtime.process"
TRACE_CHARACTERS_MAX = 65_536
SPARES_MAX = 2
RACE_SECONDS = 0.01

_spawning = threading.Lock()  # of this process's loops, each in a thread of its own


class Process(Protocol):
    """A node's process."""

    async def wait(self) -> str:
        """Returns how it ended, once it has. Lines after the first are its last traceback, if it left one."""

    def close_input(self) -> None:
        """Lets it see that its parent is leaving."""

    async def end(self, seconds: float) -> None:
        """Returns once it has ended; kills it after `seconds`."""


@dataclass(frozen=True)
class Joining:
    """What a process is to be told, so that it joins as a node.

    Attributes:
        join: the root's endpoint.
        endpoint: where a node of this host listens, with `{name}` and `{incarnation}` to be filled in.
        arguments: the rest of its command line.
    """

    join: str
    endpoint: str
    arguments: tuple[str, ...] = ()

    def command(self, node: str, incarnation: int, *, elsewhere: bool = False) -> list[str]:
        """The command of a node's process.

        Args:
            elsewhere: on another host, or without an open standard input: it listens where the root's host can reach it
                (whose topology must `listen`), and ends when it has not heard of the root for too long.
        """
        return [sys.executable, "-m", MODULE, *self.given(node, incarnation, elsewhere=elsewhere)]

    def given(self, node: str, incarnation: int, *, elsewhere: bool = False) -> list[str]:
        """Its arguments alone."""
        given = ["--join", self.join, "--name", node, "--incarnation", str(incarnation)]
        if elsewhere:
            return [*given, "--detached", *self.arguments]
        endpoint = self.endpoint.format(name=node.replace("/", "-"), incarnation=incarnation)
        return [*given, "--endpoint", endpoint, *self.arguments]


class Launcher:
    """Starts the processes of nodes. A class of your own is made with what nodes are to be told, and with the
    `options` that the topology gives it as keyword arguments."""

    def __init__(self, joining: Joining) -> None:
        self.joining = joining

    async def launch(self, node: str, incarnation: int) -> Process:
        """Returns once the process runs.

        Raises:
            OSError: it could not be started.
        """
        raise NotImplementedError

    async def prepare(self, count: int, modules: Sequence[str]) -> None:
        """Everybody is up: who will be launched next, of so many, may need these, and soon."""

    async def close(self) -> None:
        """Nobody is launched any more."""


@dataclass(frozen=True)
class LauncherPlan:
    """A launcher of a user's own: its class (`module:Class`) and, as JSON, its options."""

    cls: str
    options: str = "{}"

    def make(self, joining: Joining, place: str) -> Launcher:
        """One that starts nodes; nothing is started yet.

        Raises:
            TopologyError: no such class, no launcher, or not with these options.
        """
        cls = load_object(self.cls, place)
        if not (isinstance(cls, type) and issubclass(cls, Launcher)):
            raise TopologyError(
                place, f"{self.cls!r} is not a subclass of pageant.actors.runtime.launcher.Launcher"
            )
        try:
            return cls(joining, **json.loads(self.options))
        except (TypeError, ValueError) as error:
            raise TopologyError(place, f"{self.cls} cannot be made with {self.options}: {error}") from None


class LauncherByNode(Launcher):
    """Each node's own, for those that have one; the other for all others."""

    def __init__(self, other: Launcher, own: Mapping[str, Launcher]) -> None:
        super().__init__(other.joining)
        self._other, self._own = other, own

    async def launch(self, node: str, incarnation: int) -> Process:
        return await self._own.get(node, self._other).launch(node, incarnation)

    async def prepare(self, count: int, modules: Sequence[str]) -> None:
        for launcher in self._all():
            await launcher.prepare(count, modules)

    async def close(self) -> None:
        for launcher in self._all():
            await launcher.close()

    def _all(self) -> list[Launcher]:
        return list(dict.fromkeys((self._other, *self._own.values())))


class LocalProcesses(Launcher):
    """Starts nodes as processes on this host; keeps a few spare."""

    def __init__(self, joining: Joining) -> None:
        super().__init__(joining)
        self._spares: list[LocalProcess] = []
        self._folder = os.getcwd()  # as paths in the topology are meant, wherever this process goes
        self._making = asyncio.Lock()
        self._closed = False

    async def launch(self, node: str, incarnation: int) -> LocalProcess:
        given = self.joining.given(node, incarnation)
        while self._spares:
            spare = self._spares.pop(0)
            if spare.become(given, _environment(self._folder)):
                return spare
            await _discard(spare)
        return await self._start(given)

    async def prepare(self, count: int, modules: Sequence[str]) -> None:
        async with self._making:
            while len(self._spares) < min(count, SPARES_MAX) and not self._closed:
                try:
                    self._spares.append(await self._start(["--spare", *modules]))
                except OSError as error:
                    log.warning("there is no spare process: %s", error)
                    return

    async def close(self) -> None:
        self._closed = True
        async with self._making:
            spares, self._spares = self._spares, []
            await asyncio.gather(*map(_discard, spares))

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
    """A child of this process. uvloop starts one at a time, whichever loop of this process asks. Where it refuses one
    for that, it leaves something open, for whose end the closing of its loop waits in vain."""
    while not _spawning.acquire(blocking=False):  # noqa: ASYNC110 - it is another thread's
        await asyncio.sleep(RACE_SECONDS)
    try:
        return await _spawn_alone(command, crash_log, environment, folder)
    finally:
        _spawning.release()


async def _spawn_alone(
    command: Sequence[str], crash_log: int, environment: dict[str, str], folder: str
) -> asyncio.subprocess.Process:
    while True:  # another loop may be somebody else's
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
    """A child's: what is importable here is importable there. Paths are from the folder that it starts in."""
    return os.environ | {"PYTHONPATH": os.pathsep.join(os.path.join(folder, path) for path in sys.path)}


async def _discard(spare: LocalProcess) -> None:
    """Ends a process that is nobody."""
    await asyncio.gather(spare.end(0.0), spare.wait())


class LocalProcess:
    """A child process of this one."""

    def __init__(
        self, process: asyncio.subprocess.Process, crash_log: TextIO, environment: dict[str, str]
    ) -> None:
        self._process, self._crash_log, self._environment = process, crash_log, environment
        self.pid = process.pid

    def become(self, arguments: Sequence[str], environment: dict[str, str]) -> bool:
        """Tells a spare who it is. False when it has ended, or was started in another environment than this."""
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
