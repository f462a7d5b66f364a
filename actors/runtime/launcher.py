"""How a node's process comes to be. A launcher is a small class; this one starts processes on this host.

The child learns that its parent is gone from the end of its standard input, so that no process outlives
the root supervisor.

Most of what a small actor is away for after its death is a new interpreter with its modules: 0.25 s of computing, and
four times that where every core is busy. So one process has done that in advance, and waits to be told who it is. It
is a command of its own like any other: a fork would take over threads, sockets and locks of whoever made it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from typing import Protocol, TextIO

log = logging.getLogger("pageant.launcher")

TRACE_CHARACTERS_MAX = 65_536


class Process(Protocol):
    """A node's process."""

    async def wait(self) -> str:
        """Returns how it ended, once it has. Lines after the first are its last traceback, if it left one."""

    def close_input(self) -> None:
        """Lets it see that its parent is leaving."""

    async def end(self, seconds: float) -> None:
        """Returns once it has ended; kills it after `seconds`."""


class Launcher(Protocol):
    """Starts the process of a node."""

    async def launch(self, node: str, incarnation: int) -> Process:
        """Returns once the process runs.

        Raises:
            OSError: it could not be started.
        """

    async def prepare(self, modules: Sequence[str]) -> None:
        """Everybody is up: whoever is launched next may need these, and soon."""

    async def close(self) -> None:
        """Nobody is launched any more."""


class LocalProcesses:
    """Starts nodes as processes on this host; keeps one spare.

    Args:
        join: the root's endpoint.
        endpoint: where a child listens, with `{name}` and `{incarnation}` to be filled in.
        arguments: more of the child's command line.
    """

    def __init__(self, join: str, endpoint: str, arguments: tuple[str, ...] = ()) -> None:
        self._join, self._endpoint, self._arguments = join, endpoint, arguments
        self._spare: LocalProcess | None = None
        self._making = asyncio.Lock()
        self._closed = False

    async def launch(self, node: str, incarnation: int) -> LocalProcess:
        endpoint = self._endpoint.format(name=node.replace("/", "-"), incarnation=incarnation)
        given = ["--join", self._join, "--name", node, "--incarnation", str(incarnation)]
        given += ["--endpoint", endpoint, *self._arguments]
        spare, self._spare = self._spare, None
        if spare is not None:
            if spare.become(given, _environment()):
                return spare
            await _discard(spare)
        return await self._start(given)

    async def prepare(self, modules: Sequence[str]) -> None:
        async with self._making:
            if self._spare is None and not self._closed:
                try:
                    self._spare = await self._start(["--spare", *modules])
                except OSError as error:
                    log.warning("there is no spare process: %s", error)

    async def close(self) -> None:
        self._closed = True
        async with self._making:
            spare, self._spare = self._spare, None
            if spare is not None:
                await _discard(spare)

    async def _start(self, given: Sequence[str]) -> LocalProcess:
        environment = _environment()
        # Open for as long as the process runs.
        crash_log = tempfile.TemporaryFile("w+", errors="backslashreplace")  # noqa: SIM115
        log_arguments = ("--crash-log", str(crash_log.fileno()))
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "pageant.actors.runtime.process", *log_arguments, *given),
                stdin=asyncio.subprocess.PIPE,
                env=environment,
                start_new_session=True,  # a Ctrl-C is for the parent to act on
                pass_fds=(crash_log.fileno(),),
            )
        except BaseException:
            crash_log.close()
            raise
        return LocalProcess(process, crash_log, environment)


def _environment() -> dict[str, str]:
    """A child's: what is importable here is importable there."""
    return os.environ | {"PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}


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
        code = await self._process.wait()
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
            self._process.kill()
            await self._process.wait()
