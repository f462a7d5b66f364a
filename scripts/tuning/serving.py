"""Real runs of candidates: `pageant serve` of the topology that would be written, driven over HTTP."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

from pageant.actors.runtime.loop import new_event_loop
from pageant.scripts.planning.driving import LATE_SECONDS, drive
from pageant.scripts.planning.outcome import Outcome, RequestTimes, summed_up
from pageant.scripts.planning.requests import PlannedRequest
from pageant.scripts.server_process import ServerProcess, free_port

__all__ = ["serve", "server_of"]


def server_of(topology: Path) -> ServerProcess:
    """Return the server of a topology's file."""
    port = free_port()
    command = [sys.executable, "-m", "pageant", "serve", str(topology), "--port", str(port), "--no-page"]
    return ServerProcess("the server", command, port)


def serve(
    topology: Path,
    requests: Sequence[PlannedRequest],
    warm_up: Sequence[PlannedRequest],
    replicas: int,
    *,
    late_seconds: float = LATE_SECONDS,
) -> tuple[Outcome, list[RequestTimes]]:
    """Serve requests, each sent when it is due, and return what came of them.

    Args:
        warm_up: requests before, of which some are sent and do not count.
        replicas: of the topology.
        late_seconds: after the last arrival, in which requests are served or count as not served.

    Raises:
        StartupError: the server does not start.
    """
    with server_of(topology) as server, asyncio.Runner(loop_factory=new_event_loop) as runner:
        times = runner.run(drive(server.url, requests, warm_up, late_seconds))
    return summed_up(times, replicas, (0.0,) * replicas, 0.0, 0), times
