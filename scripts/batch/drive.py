"""A batch on its way: so many requests open at a time, answers written as they come."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from pageant.scripts.batch.lines import Answered, Asked, Error, Response
from pageant.scripts.http_client import Client, Failed

ATTEMPTS = 6  # where the server is overloaded, starts again, or is gone
PAUSE_FIRST, PAUSE_MAX = 0.5, 30.0  # seconds between them, doubled each time

_encode = msgspec.json.Encoder().encode


class _Usage(msgspec.Struct):
    completion_tokens: int = 0
    output_tokens: int = 0  # as some endpoints call them


class _Answer(msgspec.Struct):
    usage: _Usage | None = None


_decode = msgspec.json.Decoder(_Answer).decode


@dataclass
class Tally:
    """Counts of a batch's requests by their outcome so far."""

    succeeded: int = 0
    failed: int = 0
    output_tokens: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    """How often each reason of a failure was given."""

    @property
    def ended(self) -> int:
        """All that have."""
        return self.succeeded + self.failed


async def drive(
    client: Client,
    requests: Sequence[Asked],
    concurrency: int,
    write: Callable[[Answered], None],
    update: Callable[[Tally], None] = lambda tally: None,
    pause: Callable[[float], Any] = asyncio.sleep,
) -> Tally:
    """Has every request answered.

    Args:
        write: takes each answer, as it comes.
        update: is told how far it is.
        pause: waits so many seconds.
    """
    tally = Tally()
    waiting = iter(enumerate(requests, 1))

    async def work() -> None:
        for number, asked in waiting:
            answered = await _answer(client, asked, f"batch_req_{number:08x}", pause)
            write(answered)
            if answered.succeeded:
                tally.succeeded += 1
                tally.output_tokens += _output_tokens(answered)
            else:
                tally.failed += 1
                tally.reasons[answered.reason] += 1
            update(tally)

    async with asyncio.TaskGroup() as group:
        for _ in range(min(concurrency, len(requests))):
            group.create_task(work())
    return tally


async def _answer(client: Client, asked: Asked, name: str, pause: Callable[[float], Any]) -> Answered:
    """One answer; what passes is tried again."""
    seconds = PAUSE_FIRST
    for attempt in range(1, ATTEMPTS + 1):
        try:
            status, headers, body = await client.post(asked.url, bytes(asked.body))
        except Failed as failure:
            error = Error(code="connection_error", message=str(failure))
            answered = Answered(id=name, custom_id=asked.custom_id, error=error)
        else:
            response = _response(status, headers.get("x-request-id", name), body)
            answered = Answered(id=name, custom_id=asked.custom_id, response=response)
            if not answered.may_pass:
                return answered
        if attempt < ATTEMPTS:
            await pause(seconds)
            seconds = min(2 * seconds, PAUSE_MAX)
    return answered


def _response(status: int, request_id: str, body: bytes) -> Response:
    """Return a response as JSON. A text that is no JSON, as some servers' errors are, becomes a string."""
    try:
        msgspec.json.decode(body)
    except msgspec.DecodeError:
        body = _encode(body.decode(errors="replace"))
    return Response(status_code=status, request_id=request_id, body=msgspec.Raw(body))


def _output_tokens(answered: Answered) -> int:
    assert answered.response is not None
    try:
        usage = _decode(answered.response.body).usage
    except msgspec.DecodeError:  # of an endpoint that counts in another way
        return 0
    return max(usage.completion_tokens, usage.output_tokens) if usage is not None else 0


def line(answered: Answered) -> bytes:
    """Return a request's line of the output file."""
    return _encode(answered) + b"\n"
