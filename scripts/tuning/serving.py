"""Real runs of candidates: `pageant serve` of the topology that would be written, driven over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from pageant.actors.runtime.loop import new_event_loop
from pageant.protocol.errors import StartupError
from pageant.scripts.http_client import Answer, Client, Failed
from pageant.scripts.planning.outcome import Outcome, RequestTimes, summed_up
from pageant.scripts.planning.requests import PlannedRequest

START_SECONDS_MAX, STOP_SECONDS, POLL_SECONDS = 600.0, 30.0, 0.1
LATE_SECONDS = 20.0
"""After the last arrival, requests have so long; what is open then counts as not served."""
WARM_UP_REQUESTS = 4


class Server:
    """A server of a topology's file, ready within `with`; ended with all its processes after it.

    Raises:
        StartupError: it ended while it started, or was not ready in time. The message has the end of its log.
    """

    def __init__(self, topology: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self._command = [sys.executable, "-m", "pageant", "serve", str(topology), "--port", str(port)]
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed at the end)

    def __enter__(self) -> Server:
        began = time.perf_counter()
        self._process = subprocess.Popen(
            [*self._command, "--no-page"],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,
        )
        try:
            while not self._is_ready():
                ended = self._process.poll() is not None
                if ended or time.perf_counter() - began > START_SECONDS_MAX:
                    self._log.seek(0)
                    raise StartupError(f"the server did not start: {self._log.read().strip()[-1000:]}")
                time.sleep(POLL_SECONDS)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

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


def serve(
    topology: Path, requests: Sequence[PlannedRequest], warm_up: Sequence[PlannedRequest], replicas: int
) -> tuple[Outcome, list[RequestTimes]]:
    """Serve requests, each sent when it is due, and return what came of them.

    Args:
        warm_up: requests before, of which some are sent and do not count.
        replicas: of the topology.

    Raises:
        StartupError: the server does not start.
    """
    with Server(topology) as server, asyncio.Runner(loop_factory=new_event_loop) as runner:
        times = runner.run(drive(server.url, requests, warm_up))
    return summed_up(times, replicas, (0.0,) * replicas, 0.0, 0), times


async def drive(
    url: str, requests: Sequence[PlannedRequest], warm_up: Sequence[PlannedRequest] = ()
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
        last = began + max(one.at for one in requests) + LATE_SECONDS
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
