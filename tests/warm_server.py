"""The server of forks: a process that has imported what Pageant's processes import; see `warm_processes`."""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import gc
import importlib
import io
import json
import os
import runpy
import select
import selectors
import signal
import socket
import sys
import threading
from types import ModuleType
from typing import Any, NoReturn

from warm_processes import Forks, install

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
    first = request["command"][1]
    sys.argv = request["command"][2 if first == "-m" else 1 :]
    start = request["folder"] if first == "-m" else os.path.dirname(os.path.abspath(first))
    sys.path[:] = [start, *(paths.split(os.pathsep) if paths else ()), *_own_path]
    importlib.invalidate_caches()
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
        if request["command"][1] == "-m":
            sys.modules.pop(sys.argv[0] if sys.argv[0] != "pageant" else "pageant.__main__", None)
            runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        else:
            _run_script(sys.argv[0])
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


def _run_script(path: str) -> None:
    """Run a script as the module `__main__`, which other code finds under that name until the process ends."""
    main = ModuleType("__main__")
    main.__file__ = path
    sys.modules["__main__"] = main
    with open(path, "rb") as file:
        exec(compile(file.read(), path, "exec"), main.__dict__)


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
