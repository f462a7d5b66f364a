"""`pageant serve`: a model over HTTP, until a signal."""

from __future__ import annotations

import logging
import signal
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec

from pageant.actors.client.cast import HTTP
from pageant.actors.client.progress import LoadProgress
from pageant.actors.client.session import Session
from pageant.actors.client.settings import speaking_of, topology_of
from pageant.actors.client.vllm_names.command_line import spelling
from pageant.actors.client.vllm_names.translating import server_options
from pageant.actors.http.listening import listener
from pageant.actors.runtime.address import role_of
from pageant.actors.runtime.logs import configure
from pageant.actors.runtime.yaml import load_yaml, merge
from pageant.protocol.errors import ArgumentError, TopologyError
from pageant.scripts.engine_options import DEMO_MODEL

log = logging.getLogger("pageant.serve")

HTTP_SERVERS = "http_servers"
"""How many HTTP actors there are: what vLLM's --api-server-count is renamed to."""


def serve(
    engine_arguments: dict[str, Any],
    model: str | None,
    options: dict[str, Any],
    drain_seconds: float,
    flags: Mapping[str, Any],
) -> None:
    """Serves until SIGTERM or Ctrl-C; then finishes what is open, within `drain_seconds`. A second signal ends
    it at once.

    Args:
        options: of the HTTP server; None leaves one as the topology has it.
        flags: of vLLM's, by name; those of its engine are among the arguments already.
    """
    if not logging.getLogger().handlers:  # neither level nor form was given
        configure(logging.WARNING, "text", "front")
    session = session_of(merge(engine_arguments, {"actors": {HTTP: _server(options, flags)}}), model)
    _check_port(session)
    signalled = _Signalled(session.cancel_start)
    try:
        with LoadProgress(sys.stderr.isatty()) as bar:
            session.start(bar.update)
        _tell_what_is_served(session)
        signalled.wait()
        session.drain(drain_seconds)
    except CancelledError:
        if not signalled.is_set():
            raise
    finally:
        session.stop()


def _tell_what_is_served(session: Session) -> None:
    """Log the model's dtype, device, kernels and KV memory, and the address, whatever the level of other logs."""
    log.setLevel(logging.INFO)
    for name, device in session.devices().items():
        if not device.num_blocks:
            log.info("%s: asleep, on %s", name, device.device)
            continue
        weights, kv = (device.memory_bytes.get(key, 0) / 2**20 for key in ("weights", "kv_cache"))
        kernels = f" with {device.kernels} kernels" if device.kernels else ""
        log.info(
            "%s: %s on %s%s, %.0f MiB of weights; %.0f MiB of KV memory for %s tokens; requests of up to %s tokens",
            *(name, device.dtype, device.device, kernels, weights, kv),
            *(f"{count:,}" for count in (device.num_blocks * device.block_size, device.max_model_len)),
        )
    log.info("serving %s", session.served_at())


def _check_port(session: Session) -> None:
    """Find out whether the server's port is free before a model loads for minutes.

    Raises:
        TopologyError: another process listens there.
    """
    elsewhere = {node.name for node in session.resolved.nodes if node.may_be_far}
    for actor in session.resolved.actors:
        if role_of(actor.name) == HTTP and actor.node not in elsewhere:
            options = msgspec.json.decode(actor.options)
            if port := options.get("port"):
                listener(options["host"], port, shared=False).close()


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
    """Return the session that a command's engine options describe, of that model rather than the demo.

    A model that is a YAML file is a topology, which names its own.

    Raises:
        ArgumentError: the model, or the topology, is named by the options, too.
    """
    arguments = dict(engine_arguments)
    if model is not None and Path(model).suffix in (".yaml", ".yml") and Path(model).is_file():
        if arguments.get("topology") is not None:
            raise ArgumentError(
                "--topology", f"found {str(arguments['topology'])!r} beside {model!r}; expected one"
            )
        arguments["topology"], model = model, None
        if arguments.get("model") == str(DEMO_MODEL) and not {"model", "models"}.isdisjoint(
            load_yaml(Path(str(arguments["topology"])))
        ):
            del arguments["model"]
    topology, chosen = arguments.pop("topology", None), arguments.pop("model", None)
    if model is not None and chosen not in (None, str(DEMO_MODEL)):
        raise ArgumentError(
            "--model", f"found {chosen!r} beside MODEL, which is {model!r}; expected one of them"
        )
    with speaking_of(arguments):
        return Session(topology_of(model or chosen, topology, arguments))


def _server(options: Mapping[str, Any], flags: Mapping[str, Any]) -> dict[str, Any]:
    """The entry of the HTTP server in a topology.

    Raises:
        ArgumentError: a flag of vLLM's server has a value that is refused, or says what an option says.
    """
    given = {name: value for name, value in options.items() if value is not None}
    try:
        theirs = server_options(flags)
    except TopologyError as error:
        raise ArgumentError(spelling(error.place), error.message) from None
    count = theirs.pop(HTTP_SERVERS, None)
    return {"options": {**theirs, **given}, **({} if count is None else {"count": count})}
