"""Resources of this process and its children, of which a topology that has ended leaves nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import psutil

__all__ = ["Held", "most_threads", "segments_of"]

SECONDS_MAX = 5.0
"""How long what ends by itself is waited for."""
SEGMENT = "memfd:pageant-group"
SHARED = Path("/dev/shm")


@dataclass(frozen=True)
class Held:
    """Threads, child processes, listening sockets, and memory segments, each by a name."""

    threads: frozenset[str]
    processes: frozenset[int]
    ports: frozenset[int]
    segments: frozenset[str]

    @classmethod
    def now(cls) -> Held:
        """Return what this process and its children hold now."""
        this = psutil.Process()
        processes = [this, *this.children(recursive=True)]
        pids = [process.pid for process in processes]
        return cls(
            threads=frozenset(f"{thread.name} ({thread.ident})" for thread in threading.enumerate()),
            processes=frozenset(pids),
            ports=frozenset(port for process in processes for port in _ports(process)),
            segments=segments_of(pids) | _named_segments(),
        )

    async def outlived_by(self) -> list[str]:
        """Return what is held now beside this, by kind. What ends by itself is waited for."""
        until = time.monotonic() + SECONDS_MAX
        while left := self._left(Held.now()):
            if time.monotonic() > until:
                break
            await asyncio.sleep(0.1)
        return left

    def _left(self, now: Held) -> list[str]:
        return [
            *(f"thread {one}" for one in sorted(now.threads - self.threads)),
            *(f"process {one}" for one in sorted(now.processes - self.processes)),
            *(f"port {one}" for one in sorted(now.ports - self.ports)),
            *(f"segment {one}" for one in sorted(now.segments - self.segments)),
        ]


def segments_of(pids: Iterable[int]) -> frozenset[str]:
    """Return the segments of groups that some processes have in their memory, by inode."""
    found = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
                if SEGMENT in line:
                    found.add(f"{SEGMENT} {line.split()[4]}")
    return frozenset(found)


def most_threads(pids: Iterable[int]) -> int:
    """Return the number of threads of the process among these that has most."""
    most = 0
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            most = max(most, psutil.Process(pid).num_threads())
    return most


def _named_segments() -> frozenset[str]:
    """Return the segments with names that are this package's, of any process of the host."""
    if not SHARED.is_dir():
        return frozenset()
    return frozenset(str(path) for path in SHARED.iterdir() if "pageant" in path.name)


def _ports(process: psutil.Process) -> list[int]:
    with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
        return [one.laddr.port for one in process.net_connections("inet") if one.status == psutil.CONN_LISTEN]
    return []
