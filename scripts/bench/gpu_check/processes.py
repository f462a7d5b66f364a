"""A section's process and all that it started, ended together."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

__all__ = ["Ending", "adopt_orphans", "run_process"]

_PR_SET_CHILD_SUBREAPER = 36
_POLL_SECONDS = 0.1
_STACK_SECONDS = 0.5
_KILL_SECONDS = 3.0


@dataclass(frozen=True)
class Ending:
    """End of a process: by itself, with `code` (below 0 a signal's number), or at its limit."""

    seconds: float
    code: int
    at_limit: bool = False


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parents end, so that none outlives its section. (Linux only.)"""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def run_process(
    command: Sequence[str],
    *,
    environment: Mapping[str, str],
    folder: Path,
    output: IO[str],
    seconds: float,
    look: Callable[[], None],
) -> Ending:
    """Run a command in a process group of its own until it ends or its time is over; calls `look` meanwhile.

    At the limit all of the group is asked for its stacks (SIGUSR1) and then killed. Whatever it started and left
    running is killed in any case, in process groups of its own too.
    """
    others = _children()
    began = time.monotonic()
    process = subprocess.Popen(
        command,
        env=dict(environment),
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        start_new_session=True,
    )
    at_limit = False
    try:
        while process.poll() is None and not at_limit:
            time.sleep(_POLL_SECONDS)
            look()
            at_limit = time.monotonic() - began > seconds
        if at_limit:
            _signal_group(process.pid, signal.SIGUSR1)
            time.sleep(_STACK_SECONDS)
    finally:
        _signal_group(process.pid, signal.SIGKILL)
        process.wait()
        _kill_children(others)
    look()
    return Ending(time.monotonic() - began, process.returncode, at_limit)


def _signal_group(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def _kill_children(others: set[int]) -> None:
    """Kill this process's children but for `others`. Each one's own become this process's, and are next."""
    ends_at = time.monotonic() + _KILL_SECONDS
    while (left := _children() - others) and time.monotonic() < ends_at:
        for child in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(child, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(child, os.WNOHANG)
        time.sleep(0.02)


def _children() -> set[int]:
    """Return the ids of this process's children."""
    found = set()
    for status in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            parent = status.read_text().rpartition(")")[2].split()[1]
            if int(parent) == os.getpid():
                found.add(int(status.parent.name))
    return found
