"""How a node's process comes to be. A launcher is a small class; this one starts processes on this host.

The child learns that its parent is gone from the end of its standard input, so that no process outlives
the root supervisor.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
from typing import Protocol, TextIO

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


class LocalProcesses:
    """Starts nodes as processes on this host.

    Args:
        join: the root's endpoint.
        endpoint: where a child listens, with `{name}` and `{incarnation}` to be filled in.
        arguments: more of the child's command line.
    """

    def __init__(self, join: str, endpoint: str, arguments: tuple[str, ...] = ()) -> None:
        self._join, self._endpoint, self._arguments = join, endpoint, arguments

    async def launch(self, node: str, incarnation: int) -> LocalProcess:
        endpoint = self._endpoint.format(name=node.replace("/", "-"), incarnation=incarnation)
        command = [sys.executable, "-m", "pageant.actors.runtime.process"]
        command += ["--join", self._join, "--name", node, "--incarnation", str(incarnation)]
        command += ["--endpoint", endpoint, *self._arguments]
        # What is importable here is importable there; and a Ctrl-C is for the parent to act on.
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
        # Open for as long as the process runs.
        crash_log = tempfile.TemporaryFile("w+", errors="backslashreplace")  # noqa: SIM115
        try:
            process = await asyncio.create_subprocess_exec(
                *(*command, "--crash-log", str(crash_log.fileno())),
                stdin=asyncio.subprocess.PIPE,
                env=environment,
                start_new_session=True,
                pass_fds=(crash_log.fileno(),),
            )
        except BaseException:
            crash_log.close()
            raise
        return LocalProcess(process, crash_log)


class LocalProcess:
    """A child process of this one."""

    def __init__(self, process: asyncio.subprocess.Process, crash_log: TextIO) -> None:
        self._process, self._crash_log = process, crash_log
        self.pid = process.pid

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
