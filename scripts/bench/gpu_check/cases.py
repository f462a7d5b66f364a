"""One line of JSON for each case: written by the sections' processes, read by the frame."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args

__all__ = ["FAULTS", "Fault", "PlantedFault", "Recorder", "read_cases"]

Fault = Literal["crash", "hang", "exception"]
FAULTS: tuple[Fault, ...] = get_args(Fault)


class PlantedFault(BaseException):
    """The exception of a rehearsal. No case contains it, so that it ends its section."""


class Recorder:
    """Appends the cases of one section to the session's file.

    Args:
        path: the file; several processes may append to it.
        seconds: how long the section may still run.
        fault: what happens to this process after its first case, in a rehearsal.
    """

    def __init__(self, section: str, path: Path, seconds: float, fault: Fault | None = None) -> None:
        self.section = section
        self._path = path
        self._ends_at = time.monotonic() + seconds
        self._fault = fault

    @property
    def seconds_left(self) -> float:
        """Seconds until the section is ended."""
        return self._ends_at - time.monotonic()

    def add(self, case: str, **figures: Any) -> None:
        """Append a case. A single write of a line stays whole beside those of other processes."""
        line = json.dumps({"section": self.section, "case": case, **figures}) + "\n"
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)
        fault, self._fault = self._fault, None
        if fault is not None:
            _break(fault)

    @contextlib.contextmanager
    def contain(self, case: str) -> Iterator[None]:
        """Record an exception of the body as the case's error, and go on."""
        try:
            yield
        except Exception as error:
            traceback.print_exc()
            self.add(case, error=describe(error))


def describe(error: BaseException) -> str:
    """Return the class of an exception and the first line that says something."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0]}"[:300] if lines else type(error).__name__


def read_cases(path: Path) -> list[dict[str, Any]]:
    """Return the cases of a file in order; without those lines that a killed process left unfinished."""
    cases: list[dict[str, Any]] = []
    if not path.exists():
        return cases
    for line in path.read_text(errors="replace").splitlines():
        with contextlib.suppress(ValueError):
            case = json.loads(line)
            if isinstance(case, dict):
                cases.append(case)
    return cases


def _break(fault: Fault) -> None:
    if fault == "exception":
        raise PlantedFault("planted")
    if fault == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        time.sleep(1)
