"""`pageant serve`: a model over HTTP, until a signal."""

from __future__ import annotations

import signal
import socket
import sys
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError
from types import FrameType
from typing import Any

from pageant.actors.frontend.cast import HTTP
from pageant.actors.frontend.progress import LoadProgress
from pageant.actors.frontend.session import Session
from pageant.actors.frontend.settings import topology_of
from pageant.actors.runtime.yaml import merge


def serve(
    engine_arguments: dict[str, Any], model: str | None, options: dict[str, Any], drain_seconds: float
) -> None:
    """Serves until SIGTERM or Ctrl-C; then finishes what is open, within `drain_seconds`. A second signal ends
    it at once.

    Args:
        options: of the HTTP server; None leaves one as the topology has it.
    """
    given = {name: value for name, value in options.items() if value is not None}
    session = session_of(merge(engine_arguments, {"actors": {HTTP: {"options": given}}}), model)
    signalled = _Signalled(session.cancel_start)
    try:
        with LoadProgress(sys.stderr.isatty()) as bar:
            session.start(bar.update)
        print(f"serving {session.served_at()}", file=sys.stderr, flush=True)
        signalled.wait()
        session.drain(drain_seconds)
    except CancelledError:
        if not signalled.is_set():
            raise
    finally:
        session.stop()


class _Signalled:
    """Waits for the first SIGINT or SIGTERM; what comes after that one does as before.

    A handler runs wherever the main thread is, perhaps with a lock held, and not before that thread goes on, which it
    does not where the system gave the signal to another thread and it waits for something itself. So a thread is told
    of signals by a socket, to which the interpreter writes in whichever thread gets one. (To wait for signals in that
    thread, and block them in all others, would not do: libraries have started theirs, and one of them would get it.)
    """

    def __init__(self, then: Callable[[], None]) -> None:
        """Args: then: is called in a thread of its own when a signal comes."""
        self._then = then
        self._seen = threading.Event()
        self._came, self._written = socket.socketpair()
        self._written.setblocking(False)
        signal.set_wakeup_fd(self._written.fileno(), warn_on_full_buffer=False)
        self._before = {
            number: signal.signal(number, self._handle) for number in (signal.SIGINT, signal.SIGTERM)
        }
        threading.Thread(target=self._run, name="pageant-signals", daemon=True).start()

    def wait(self) -> None:
        self._seen.wait()

    def is_set(self) -> bool:
        return self._seen.is_set()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        for known, handler in self._before.items():
            signal.signal(known, handler)

    def _run(self) -> None:
        while not self._before.keys() & set(self._came.recv(64)):
            pass  # another signal, of which we are told too
        self._seen.set()
        self._then()


def session_of(engine_arguments: dict[str, Any], model: str | None) -> Session:
    """What a command's engine options describe, of that model rather than theirs."""
    arguments = dict(engine_arguments)
    topology, chosen = arguments.pop("topology", None), arguments.pop("model", None)
    return Session(topology_of(model or chosen, topology, arguments))
