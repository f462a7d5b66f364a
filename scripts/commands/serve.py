"""`pageant serve`: a model over HTTP, until a signal."""

from __future__ import annotations

import signal
import sys
import threading
from concurrent.futures import CancelledError
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
    signals = (signal.SIGINT, signal.SIGTERM)
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)  # in all threads from here on; one waits for them
    came = threading.Event()

    def wait() -> None:
        signal.sigwait(signals)
        came.set()
        session.cancel_start()

    threading.Thread(target=wait, name="pageant-signals", daemon=True).start()
    try:
        with LoadProgress(sys.stderr.isatty()) as bar:
            session.start(bar.update)
        print(f"serving {session.served_at()}", file=sys.stderr, flush=True)
        came.wait()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
        session.drain(drain_seconds)
    except CancelledError:
        if not came.is_set():
            raise
    finally:
        session.stop()


def session_of(engine_arguments: dict[str, Any], model: str | None) -> Session:
    """What a command's engine options describe, of that model rather than theirs."""
    arguments = dict(engine_arguments)
    topology, chosen = arguments.pop("topology", None), arguments.pop("model", None)
    return Session(topology_of(model or chosen, topology, arguments))
