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
import gc
import importlib
import inspect
import io
import json
import os
import runpy
import select
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

REFUSED = "PAGEANT_TEST_REAL_PROCESSES"
"""Name of the environment variable under which every process is a new interpreter."""
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
PRELOADED = (
    *(
        "torch",
        "llguidance",
        "litestar",
        "uvicorn",
        "uvloop",
        "jinja2",
        "pydantic.main",
        "tokenizers",
        "rich.table",
    ),
    *(
        "pageant.protocol.schema",
        "pageant.protocol.following",
        "pageant.kernels.cpu",
        "pageant.kernels.preparing",
    ),
    *("pageant.actors.runtime.agent", "pageant.actors.runtime.process", "pageant.actors.runtime.isolated"),
    *(
        "pageant.actors.runtime.transport.zeromq",
        "pageant.actors.client.engine",
        "pageant.actors.http.server",
    ),
    *("pageant.actors.blocks.actor", "pageant.actors.detokenizer", "pageant.actors.executor.actor"),
    *(
        "pageant.actors.executor.runners.cuda",
        "pageant.actors.executor.runners.runner",
        "pageant.actors.frontend",
    ),
    *("pageant.actors.grammar.actor", "pageant.actors.grammar.isolated", "pageant.actors.scheduler.actor"),
    *("pageant.actors.tokenizer", "pageant.scripts.cli", "pageant.scripts.commands.run"),
)
MESSAGE_BYTES_MAX = 1 << 20
FDS_MAX = 16


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
        return (
            words[:2] == [sys.executable, "-m"]
            and len(words) > 2
            and words[2] in COMMANDS
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
            command = [sys.executable, __file__, path]
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


class _Server:
    """Forks itself for whoever connects to `path`, until its standard input ends."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listening.bind(path)
        self._listening.listen(128)
        self._askers: dict[int, socket.socket] = {}

    def serve(self) -> dict[str, Any] | None:
        """Return a request in each fork, and None in the server when it is to end."""
        woken, waking = os.pipe()
        os.set_blocking(waking, False)
        signal.set_wakeup_fd(waking)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGINT, lambda *_: None)
        with selectors.DefaultSelector() as selector:
            for fd in (0, woken, self._listening.fileno()):
                selector.register(fd, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select():
                    if key.fd == 0:
                        return None
                    if key.fd == woken:
                        os.read(woken, 4096)
                        self._report()
                    elif (request := self._fork()) is not None:
                        signal.set_wakeup_fd(-1)
                        for fd in (woken, waking):
                            os.close(fd)
                        return request

    def _report(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                pid, status = ended
                asker = self._askers.pop(pid)
                with asker, contextlib.suppress(OSError):
                    asker.send(str(status).encode())

    def _fork(self) -> dict[str, Any] | None:
        asker, _ = self._listening.accept()
        data, fds, _, _ = socket.recv_fds(asker, MESSAGE_BYTES_MAX, FDS_MAX)
        if not data:
            asker.close()
            return None
        pid = os.fork()
        if pid:
            for fd in fds:
                os.close(fd)
            self._askers[pid] = asker
            with contextlib.suppress(OSError):
                asker.send(str(pid).encode())
            return None
        for connection in (self._listening, asker, *self._askers.values()):
            connection.close()
        return json.loads(data) | {"fds": fds}


def _become(request: dict[str, Any]) -> None:
    """Make this fork what a new interpreter with the request's command would be."""
    pairs = dict(zip(request["numbers"], request["fds"], strict=True))
    _renumber(pairs)
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if request["new_session"]:
        os.setsid()
    else:
        with contextlib.suppress(OSError):
            os.setpgid(0, request["group"])
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    sys.dont_write_bytecode = bool(os.environ.get("PYTHONDONTWRITEBYTECODE"))
    paths = os.environ.get("PYTHONPATH", "")
    sys.path[:] = [request["folder"], *(paths.split(os.pathsep) if paths else ()), *_own_path]
    importlib.invalidate_caches()
    sys.argv = request["command"][2:]
    sys.stdin, sys.stdout, sys.stderr = _text(0), _text(1), _text(2)
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr
    _follow(request["asker"])


def _renumber(fds: dict[int, int]) -> None:
    """Give descriptors the numbers that they are to have, whichever of them stand in each other's place."""
    above = max(fds) + 1
    high = {number: os.dup(fd) for number, fd in fds.items()}
    while any(fd < above for fd in high.values()):
        high = {number: fd if fd >= above else _dup_above(fd, above) for number, fd in high.items()}
    for fd in fds.values():
        os.close(fd)
    for number, fd in high.items():
        os.dup2(fd, number, inheritable=True)
        os.close(fd)


def _dup_above(fd: int, least: int) -> int:
    import fcntl

    higher = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, least)
    os.close(fd)
    return higher


def _text(fd: int) -> io.TextIOWrapper:
    raw = open(fd, "rb" if fd == 0 else "wb", closefd=False)  # noqa: SIM115
    through = bool(os.environ.get("PYTHONUNBUFFERED"))
    return io.TextIOWrapper(
        raw,
        encoding="utf-8",
        errors="backslashreplace" if fd == 2 else "strict",
        line_buffering=fd == 2 or os.isatty(fd),
        write_through=through and fd != 0,
    )


def _follow(asker: int) -> None:
    """Have `os.getppid` say the asker while that runs."""
    usual = os.getppid
    try:
        watched = os.pidfd_open(asker)
    except ProcessLookupError:
        return

    def parent() -> int:
        return usual() if select.select([watched], [], [], 0)[0] else asker

    os.getppid = parent


def _run(request: dict[str, Any], forks: Forks) -> NoReturn:
    """Run the module of a request, and end as an interpreter ends, without taking its modules apart."""
    code: Any = 0
    try:
        _become(request)
        install(forks)
        module = sys.argv[0]
        sys.modules.pop(module if module != "pageant" else "pageant.__main__", None)
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        code = end.code
    except BaseException:
        code = _excepted()
    if code is not None and not isinstance(code, int):
        print(code, file=sys.stderr)
        code = 1
    with contextlib.suppress(BaseException):
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
    for file in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            file.flush()
    os._exit((code or 0) & 0xFF)


def _excepted() -> int:
    sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
    if not isinstance(sys.exc_info()[1], KeyboardInterrupt):
        return 1
    sys.stderr.flush()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGINT)
    return 130


def main() -> None:
    """Load modules, then serve forks at the socket that the command line names."""
    for module in PRELOADED:
        importlib.import_module(module)
    from pageant.protocol.handshake import fingerprint

    threads = os.listdir("/proc/self/task")
    assert len(threads) == 1, "no fork has the threads that an import started"
    fingerprint()  # which is kept
    gc.collect()
    gc.freeze()
    server = _Server(sys.argv[1])
    for name in ("OPENBLAS_NUM_THREADS", "PYTHONPATH"):
        del os.environ[name]
    forks = Forks(os.environ, sys.argv[1])
    os.write(1, b"ready\n")
    if (request := server.serve()) is not None:
        _run(request, forks)
    os._exit(0)


_own_path = sys.path[1:]

if __name__ == "__main__":
    main()
