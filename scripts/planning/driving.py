"""Requests of a load, sent to a real server over HTTP, each when it is due."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence

from pageant.scripts.http_client import Answer, Client, Failed
from pageant.scripts.planning.outcome import RequestTimes
from pageant.scripts.planning.requests import PlannedRequest

__all__ = ["LATE_SECONDS", "ask", "drive", "timed"]

LATE_SECONDS = 20.0
"""After the last arrival, requests have so long; what is open then counts as not served."""
WARM_UP_REQUESTS = 4


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
                await ask(client, request)
        began = time.perf_counter()
        tasks = [asyncio.create_task(timed(client, one, began + one.at)) for one in requests]
        last = began + max(one.at for one in requests) + late_seconds
        await asyncio.wait(tasks, timeout=last - time.perf_counter())
        for task in tasks:
            task.cancel()
        return await asyncio.gather(*tasks)
    finally:
        client.close()


async def timed(client: Client, request: PlannedRequest, due: float) -> RequestTimes:
    """Send a request at `due`, and return its times, all of `time.perf_counter`."""
    times = RequestTimes(due, len(request.prompt))
    try:
        await asyncio.sleep(due - time.perf_counter())
        answer = await ask(client, request)
    except (Failed, asyncio.CancelledError):  # the latter where it came too late
        times.refused = True
        return times
    times.first_at, times.last_at = answer.first, answer.last
    times.gaps.extend(answer.gaps.tolist())
    times.output_tokens = answer.output_tokens
    return times


async def ask(client: Client, request: PlannedRequest) -> Answer:
    """Ask for as many tokens as the request's output has, whatever they are.

    Raises:
        Failed: it is not answered to its end.
    """
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
