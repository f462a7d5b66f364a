"""Real runs of candidates: `pageant serve` of the topology that would be written, driven over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from pageant.actors.runtime.loop import new_event_loop
from pageant.scripts.http_client import Answer, Client, Failed
from pageant.scripts.planning.outcome import Outcome, RequestTimes, summed_up
from pageant.scripts.planning.requests import PlannedRequest
from pageant.scripts.server_process import ServerProcess, free_port

LATE_SECONDS = 20.0
"""After the last arrival, requests have so long; what is open then counts as not served."""
WARM_UP_REQUESTS = 4


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


async def drive(
    url: str,
    requests: Sequence[PlannedRequest],
    warm_up: Sequence[PlannedRequest] = (),
    late_seconds: float = LATE_SECONDS,
) -> list[RequestTimes]:
    """Send requests to a server, each when it is due, and return the times of all of them.

    What is late because this process was, counts: times run from when a request was due.
    """
    client = Client(url)
    try:
        for request in warm_up[:WARM_UP_REQUESTS]:
            with contextlib.suppress(Failed):
                await _ask(client, request)
        began = time.perf_counter()
        tasks = [asyncio.create_task(_timed(client, one, began + one.at)) for one in requests]
        last = began + max(one.at for one in requests) + late_seconds
        await asyncio.wait(tasks, timeout=last - time.perf_counter())
        for task in tasks:
            task.cancel()
        return await asyncio.gather(*tasks)
    finally:
        client.close()


async def _timed(client: Client, request: PlannedRequest, due: float) -> RequestTimes:
    times = RequestTimes(due, len(request.prompt))
    try:
        await asyncio.sleep(due - time.perf_counter())
        answer = await _ask(client, request)
    except (Failed, asyncio.CancelledError):  # the latter where it came too late
        times.refused = True
        return times
    times.first_at, times.last_at = answer.first, answer.last
    times.gaps.extend(answer.gaps.tolist())
    times.output_tokens = answer.output_tokens
    return times


async def _ask(client: Client, request: PlannedRequest) -> Answer:
    """Ask for as many tokens as the request's output has, whatever they are."""
    body = {
        "prompt": request.prompt.tolist(),
        "max_tokens": request.output_tokens,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,  # so that a token without a text of its own is an event, too
    }
    return await client.stream("/v1/completions", body)
