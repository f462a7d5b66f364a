"""Costs of a server on this machine while a load runs: CPU time and memory of all its processes."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import defaultdict
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from pageant.actors.runtime.processor_time import processor_seconds
from pageant.protocol.errors import BadRequest
from pageant.scripts.bench.engine_process import family
from pageant.scripts.http_client import Client, Failed

PERIOD = 1.0
PAGE = os.sysconf("SC_PAGE_SIZE")


class Meter:
    """Samples a process and its descendants within `async with`: CPU seconds, and resident memory (pages that
    are shared count for each)."""

    def __init__(self, pid: int) -> None:
        if not Path(f"/proc/{pid}").exists():
            raise BadRequest(f"there is no process {pid} here", "pid")
        self._pid = pid
        self._before: dict[int, float] = {}
        self._memory: list[int] = []
        self.cpu_seconds = 0.0

    async def __aenter__(self) -> Meter:
        self._before = cpu_seconds(self._pid)
        self._sampling = asyncio.create_task(self._sample())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._sampling.cancel()
        after = cpu_seconds(self._pid)
        self._memory.append(sum(map(resident_bytes, after)))
        self.cpu_seconds = sum(seconds - self._before.get(pid, 0.0) for pid, seconds in after.items())

    async def _sample(self) -> None:
        while True:
            self._memory.append(sum(map(resident_bytes, family(self._pid))))
            await asyncio.sleep(PERIOD)

    def report(self, tokens: int) -> dict[str, Any]:
        """Return the costs as JSON. The memory that a load needs is held by its second quarter: from then on memory
        is flat, or something leaks."""
        quarters = [self._memory[len(self._memory) * part // 4] for part in (1, 2, 3)]
        return {
            "server_cpu_seconds": round(self.cpu_seconds, 2),
            "server_cpu_seconds_per_1000_tokens": round(1e3 * self.cpu_seconds / max(1, tokens), 4),
            "server_memory_mib": [round(each / 2**20, 1) for each in (*quarters, self._memory[-1])],
        }

    def lines(self, tokens: int) -> list[str]:
        """Return the costs as lines for reading."""
        report = self.report(tokens)
        memory = ", ".join(f"{each:.0f}" for each in report["server_memory_mib"])
        return [
            f"{'server, CPU s':>24}: {self.cpu_seconds:.1f} "
            f"({report['server_cpu_seconds_per_1000_tokens']:.3f} per 1,000 tokens)",
            f"{'server, memory in MiB':>24}: {memory} (after each quarter)",
        ]


class _Node(msgspec.Struct):
    cpu_seconds: float = 0.0
    actors: dict[str, Any] = msgspec.field(default_factory=dict)


class _Statistics(msgspec.Struct):
    nodes: dict[str, _Node]


class NodeMeter:
    """Measures within `async with` the cost of each process of our servers, as `/statistics` says; of another's server,
    nothing. An HTTP server in a process of its own is thereby seen alone."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._before: dict[str, _Node] = {}
        self._after: dict[str, _Node] = {}

    async def __aenter__(self) -> NodeMeter:
        self._before = await self._look()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self._after = await self._look()

    async def _look(self) -> dict[str, _Node]:
        try:
            return msgspec.json.decode(await self._client.get("/statistics"), type=_Statistics).nodes
        except (Failed, msgspec.DecodeError):
            return {}

    def report(self, tokens: int) -> dict[str, Any]:
        """Return microseconds of CPU time for each token, by node, as JSON has them."""
        spent = {name: node.cpu_seconds for name, node in self._after.items() if name in self._before}
        return {
            "node_cpu_us_per_token": {
                name: round(1e6 * (seconds - self._before[name].cpu_seconds) / max(1, tokens), 2)
                for name, seconds in spent.items()
            }
        }

    def lines(self, tokens: int) -> list[str]:
        """Return the costs as lines for reading."""
        return [
            f"{name + ', CPU us a token':>24}: {spent:.1f} ({', '.join(self._actors(name))})"
            for name, spent in self.report(tokens)["node_cpu_us_per_token"].items()
        ]

    def _actors(self, node: str) -> list[str]:
        return [
            name for name in self._after[node].actors if name != "supervisor" and not name.startswith("node/")
        ]


def cpu_seconds(pid: int) -> dict[int, float]:
    """Return the user and system time of a process and its descendants so far."""
    found: dict[int, float] = defaultdict(float)
    for one in family(pid):
        with contextlib.suppress(OSError):
            found[one] = processor_seconds(one)
    return found


def resident_bytes(pid: int) -> int:
    """Return the resident memory of one process; 0 where it has ended."""
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE
    return 0
