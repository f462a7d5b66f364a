"""Start Pageant's processes for tests as forks of one process that has imported torch already.

A new interpreter takes 0.5 s of computing for Pageant's modules and 2.5 s more for torch; a fork takes 0.05 s. Tests
start thousands of processes. `install` has `subprocess` and the launcher ask a server for a fork, where the command is
`python -m pageant...` and the environment says nothing else about libraries than the server's own. Every other command,
and every process of tests with the fixture `real_processes`, is started as usual.

A fork behaves as a child of the process that asked for it: `os.waitpid` says how it ended, and `os.getppid` changes
when the asker has ended. To the system it is a child of the server, which itself ends with the process that started it.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import functools
import inspect
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

REFUSED = "PAGEANT_TEST_REAL_PROCESSES"
"""Name of the environment variable under which every process is a new interpreter."""
WILLING = "PAGEANT_TEST_FORKS"
"""Name of the environment variable under which a script is a fork as well."""
COMMANDS = ("pageant", "pageant.actors.runtime.process", "pageant.actors.runtime.isolated")
READ_AT_IMPORT = (
    "CUDA",
    "HF_",
    "KMP",
    "LD_",
    "MALLOC",
    "MKL",
    "OMP",
    "OPENBLAS",
    "PYTHON",
    "TORCH",
    "TRITON",
)
"""Beginnings of the names of variables that libraries or the interpreter read when they start."""
READ_LATER = (
    *("PYTHONPATH", "PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE"),
    *("TORCHINDUCTOR_CACHE_DIR", "TRITON_DEFAULT_FP_FUSION"),
)
"""Those of them that a fork can heed as well, or that imports of this process set."""


class Fork:
    """A running fork, as the process that asked for it has it.

    Attributes:
        pid: its process id.
        connection: to the server, which sends its wait status when it has ended.
    """

    def __init__(self, server: str, request: dict[str, Any], fds: Sequence[int]) -> None:
        self.connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._lock = threading.Lock()
        self._status: int | None = None
        try:
            self.connection.connect(server)
            socket.send_fds(self.connection, [json.dumps(request).encode()], list(fds))
            said = self.connection.recv(64)
            if not said:
                raise OSError("the server of forks has ended")
            self.pid = int(said)
        except BaseException:
            self.connection.close()
            raise

    def wait(self, *, block: bool) -> int | None:
        """Return its wait status; None while it runs, unless `block`."""
        with self._lock:
            if self._status is None:
                if not block and not select.select([self.connection], [], [], 0)[0]:
                    return None
                self._status = int(self.connection.recv(64) or signal.SIGKILL)
                self.connection.close()
            return self._status


class Forks:
    """Asks a server for forks.

    Attributes:
        server: the path of its socket; None before the first fork.
        running: forks that nobody has waited for, by process id.
    """

    def __init__(self, environment: Mapping[str, str], server: str | None = None) -> None:
        self.server = server
        self.running: dict[int, Fork] = {}
        self._environment = dict(environment)
        self._starting = threading.Lock()

    def takes(self, command: Sequence[Any], environment: Mapping[str, str]) -> bool:
        """Return whether a fork does the same as this command."""
        words = [os.fspath(word) for word in command]
        is_ours = words[1:2] == ["-m"] and words[2] in COMMANDS
        is_script = WILLING in environment and words[1].endswith(".py") if len(words) > 1 else False
        return (
            words[0] == sys.executable
            and (is_ours or is_script)
            and REFUSED not in environment
            and _of_libraries(environment) == _of_libraries(self._environment)
        )

    def start(
        self,
        command: Sequence[Any],
        environment: Mapping[str, str],
        folder: Any,
        fds: Mapping[int, int],
        *,
        new_session: bool,
    ) -> Fork:
        """Start a fork. `fds` are this process's descriptors by their numbers in the fork."""
        self._start_server()
        request = {
            "command": [os.fspath(word) for word in command],
            "environment": dict(environment),
            "folder": os.getcwd() if folder is None else os.fspath(folder),
            "numbers": list(fds),
            "new_session": new_session,
            "asker": os.getpid(),
            "group": os.getpgid(0),
        }
        fork = Fork(str(self.server), request, list(fds.values()))
        self.running[fork.pid] = fork
        return fork

    def _start_server(self) -> None:
        with self._starting:
            if self.server is not None:
                return
            path = str(Path(tempfile.mkdtemp(prefix="forks-")) / "socket")
            # It ends with this process, whose end of its standard input is never closed before.
            command = [sys.executable, str(Path(__file__).with_name("warm_server.py")), path]
            # numpy's library would start threads, which no fork would have.
            environment = self._environment | {"OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": ""}
            child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
            assert child.stdout is not None
            if child.stdout.readline() != b"ready\n":
                raise RuntimeError("the server of forks did not start")
            atexit.register(_end, child)
            self.server = path


def _end(child: subprocess.Popen[bytes]) -> None:
    child.kill()
    child.communicate()


def _of_libraries(environment: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in environment.items()
        if name.startswith(READ_AT_IMPORT) and name not in READ_LATER
    }


def install(forks: Forks) -> None:
    """Have `subprocess`, `os.waitpid` and the launcher use forks, in this process."""
    _install_in_subprocess(forks)
    _install_in_launcher(forks)


def _install_in_subprocess(forks: Forks) -> None:
    usual, usual_wait = subprocess.Popen._execute_child, os.waitpid  # type: ignore[attr-defined]
    signature = inspect.signature(usual)

    @functools.wraps(usual)
    def execute(*arguments: Any, **keywords: Any) -> None:
        process = arguments[0]
        given = SimpleNamespace(**signature.bind(*arguments, **keywords).arguments)
        environment = os.environ if given.env is None else given.env
        plain = given.preexec_fn is None and not given.shell and isinstance(given.args, (list, tuple))
        if not plain or not given.close_fds or not forks.takes(given.args, environment):
            return usual(*arguments, **keywords)
        ends = {0: given.p2cread, 1: given.c2pwrite, 2: given.errwrite}
        fds = {number: number if end == -1 else end for number, end in ends.items()}
        fds |= {number: number for number in given.pass_fds}
        fork = forks.start(given.args, environment, given.cwd, fds, new_session=bool(given.start_new_session))
        process.pid, process._child_created = fork.pid, True
        process._close_pipe_fds(
            given.p2cread, given.p2cwrite, given.c2pread, given.c2pwrite, given.errread, given.errwrite
        )

    def wait(pid: int, options: int) -> tuple[int, int]:
        fork = forks.running.get(pid)
        if fork is None:
            return usual_wait(pid, options)
        status = fork.wait(block=not options & os.WNOHANG)
        if status is None:
            return 0, 0
        forks.running.pop(pid, None)
        return pid, status

    poll = subprocess.Popen._internal_poll  # type: ignore[attr-defined]
    if "_waitpid" in inspect.signature(poll).parameters:
        poll = functools.partialmethod(poll, _waitpid=wait)
    subprocess.Popen._execute_child = execute  # type: ignore[attr-defined]
    subprocess.Popen._internal_poll = poll  # type: ignore[attr-defined]
    os.waitpid = wait


class _LauncherProcess:
    """A fork with what the launcher uses of `asyncio.subprocess.Process`."""

    def __init__(self, forks: Forks, fork: Fork, stdin: int) -> None:
        self._forks, self._fork = forks, fork
        self.pid = fork.pid
        self.stdin = _Pipe(stdin)
        self._ended = asyncio.ensure_future(self._wait())

    @property
    def returncode(self) -> int | None:
        status = self._fork.wait(block=False)
        return None if status is None else os.waitstatus_to_exitcode(status)

    async def _wait(self) -> int:
        loop, said = asyncio.get_running_loop(), asyncio.Event()
        if self.returncode is None:
            loop.add_reader(self._fork.connection.fileno(), said.set)
            try:
                await said.wait()
            finally:
                loop.remove_reader(self._fork.connection.fileno())
        self._forks.running.pop(self.pid, None)
        self.stdin.close()
        return os.waitstatus_to_exitcode(self._fork.wait(block=True) or 0)

    async def wait(self) -> int:
        return await asyncio.shield(self._ended)

    def kill(self) -> None:
        if self.returncode is not None:
            raise ProcessLookupError
        os.kill(self.pid, signal.SIGKILL)


class _Pipe:
    """The writing end of a standard input."""

    def __init__(self, fd: int) -> None:
        self._fd: int | None = fd

    def write(self, data: bytes) -> None:
        if self._fd is not None:
            with contextlib.suppress(BrokenPipeError):
                os.write(self._fd, data)

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def _install_in_launcher(forks: Forks) -> None:
    from pageant.actors.runtime import launcher

    usual = launcher._spawn

    async def spawn(command: Sequence[str], crash_log: int, environment: dict[str, str], folder: str) -> Any:
        if not forks.takes(command, environment):
            return await usual(command, crash_log, environment, folder)
        theirs, ours = os.pipe()
        try:
            fds = {0: theirs, 1: 1, 2: 2, crash_log: crash_log}
            fork = forks.start(command, environment, folder, fds, new_session=True)
        except BaseException:
            os.close(ours)
            raise
        finally:
            os.close(theirs)
        return _LauncherProcess(forks, fork, ours)

    launcher._spawn = spawn  # type: ignore[assignment]
