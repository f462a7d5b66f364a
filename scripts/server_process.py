"""Servers in processes of their own, started as their users start them."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import ClassVar, Self

from pageant.protocol.errors import StartupError

STOP_SECONDS, POLL_SECONDS = 30.0, 0.1
LOG_CHARACTERS = 2000
"""The most of the end of a log that an error has."""


def free_port() -> int:
    """Return a port of the loopback that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


class ServerProcess:
    """A server that is ready within `with`; ended with all its processes after it.

    Args:
        name: what messages call it.
        command: its words, by which it listens on the port.
        environment: None is this process's.

    Raises:
        StartupError: it ended while it started, or was not ready in time. The message has the end of its log.
    """

    start_seconds_max: ClassVar[float] = 600.0
    """Seconds from its start in which it must be ready."""
    error: ClassVar[type[Exception]] = StartupError
    """The error of a server that does not start."""

    def __init__(
        self, name: str, command: Sequence[str], port: int, environment: Mapping[str, str] | None = None
    ) -> None:
        self.name, self.url = name, f"http://127.0.0.1:{port}"
        self._command, self._environment = command, environment
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed at the end)

    def __enter__(self) -> Self:
        began = time.perf_counter()
        self._process = subprocess.Popen(
            self._command,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,
        )
        try:
            while not self._is_ready():
                ended = self._process.poll() is not None
                if ended or time.perf_counter() - began > self.start_seconds_max:
                    self._log.seek(0)
                    end = self._log.read().strip()[-LOG_CHARACTERS:]
                    raise self.error(f"{self.name} did not start: {end}")
                time.sleep(POLL_SECONDS)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    @property
    def pid(self) -> int:
        """Return the id of the process from which all the others descend."""
        return self._process.pid

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/v1/models", timeout=5) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def _end(self) -> None:
        self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_SECONDS)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._log.close()
