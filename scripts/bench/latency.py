"""`pageant bench latency`: what streams notice of a long prompt that is computed beside them.

A prompt is computed in chunks, one a step, and each step also gives every stream its next token: a stream waits for
one chunk, never for the prompt. So the 99th percentile of the time between tokens, while the prompt is computed, is
put beside the 99th percentile of a chunk's time, on the device, when the same prompt is computed alone. (The last
chunks take the longest: they look back at all before them.)
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import statistics
import time
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

import numpy as np
import typer

from pageant.actors.client.engine import Engine
from pageant.actors.runtime import receives
from pageant.actors.runtime.yaml import merge
from pageant.actors.scheduler.actor import Scheduler
from pageant.protocol.errors import BadRequest
from pageant.protocol.sampling import RequestOutputKind, SamplingParams
from pageant.protocol.stepping import StepResult
from pageant.scripts.bench.models import suit
from pageant.scripts.bench.progress import rounds
from pageant.scripts.bench.workloads import random_ids
from pageant.scripts.engine_options import with_engine_options
from pageant.scripts.report import Json, publish, table

STREAM_PROMPT = 64  # tokens
POLL_SECONDS = 0.005
ONE = SamplingParams(temperature=0, max_tokens=1)
MARGIN = 64  # tokens of a stream before the long prompt comes, and after


class TimedScheduler(Scheduler):
    """The scheduler, which also notes how long each step took on the device."""

    seconds: ClassVar[list[float]] = []

    @receives
    def stepped(self, message: StepResult) -> None:
        """See `Scheduler.stepped`."""
        self.seconds.append(message.seconds)
        super().stepped(message)


@dataclass
class Stream:
    """Times at which the tokens of one request came."""

    times: list[float] = field(default_factory=list)

    def gaps(self, began: float, ended: float) -> list[float]:
        """Return the gaps between its tokens, from the last one before `began` to the first one after `ended`."""
        pairs = zip(self.times, self.times[1:], strict=False)
        return [after - before for before, after in pairs if after > began and before < ended]


@with_engine_options
def bench(
    engine: dict[str, Any],
    prompt: Annotated[int, typer.Option(help="Tokens of the long prompt.")] = 32_000,
    streams: Annotated[int, typer.Option(help="That decode beside it.")] = 8,
    rounds_: Annotated[
        int, typer.Option("--rounds", help="Alone and beside them, in turn; the median of ratios counts.")
    ] = 3,
    json: Json = None,
) -> None:
    """Streams beside a long prompt: 99th percentile of the time between their tokens, over a chunk's time."""
    if streams < 1 or prompt < 1:
        raise BadRequest("expected at least one stream, and a prompt of at least one token", "streams")
    engine = {
        "max_model_len": prompt + 1 + MARGIN + STREAM_PROMPT,
        "enable_prefix_caching": False,
        **suit(engine, "small-long"),
    }
    timed = f"{TimedScheduler.__module__}:{TimedScheduler.__name__}"
    found = asyncio.run(
        _rounds(merge({"actors": {"scheduler": {"class": timed}}}, engine), prompt, streams, rounds_)
    )
    ratio = statistics.median(one["ratio"] for one in found)
    columns = tuple(found[0])
    figures = {"prompt_tokens": prompt, "streams": streams, "ratio": round(ratio, 3), "rounds": found}
    lines = table(columns, [tuple(one.values()) for one in found])
    publish(figures, [*lines, f"between tokens, 99th percentile: {ratio:.2f} of a chunk's time"], json)


async def _rounds(settings: dict[str, Any], prompt: int, streams: int, count: int) -> list[dict[str, float]]:
    chance = random.Random(0)
    async with Engine(**settings) as engine:
        await _alone(engine, random_ids(chance, prompt))  # what is loaded or recorded when it is first used
        return [
            _report(
                *await _alone(engine, random_ids(chance, prompt)),
                *await _beside(engine, chance, prompt, streams),
            )
            for _ in rounds("alone and beside streams", count)
        ]


async def _alone(engine: Engine, prompt: list[int]) -> tuple[list[float], float]:
    """The seconds of each chunk of a prompt, and of all of it."""
    await engine.complete(prompt[:1], ONE)  # the steps that were at hand when streams were aborted are over
    TimedScheduler.seconds.clear()
    began = time.perf_counter()
    await engine.complete(prompt, ONE)
    took = time.perf_counter() - began
    if not TimedScheduler.seconds:
        raise BadRequest("the scheduler lives in another process; expected it in this one", "topology")
    return TimedScheduler.seconds.copy(), took


async def _beside(
    engine: Engine, chance: random.Random, prompt: int, streams: int
) -> tuple[list[float], float]:
    """The times between tokens of all streams while a prompt is computed, and the seconds that it takes."""
    async with decoding(engine, chance, streams) as all_streams:
        began = time.perf_counter()
        await engine.complete(random_ids(chance, prompt), ONE)
        ended = time.perf_counter()
        await until(all_streams, max(len(one.times) for one in all_streams) + 1)
    return [gap for one in all_streams for gap in one.gaps(began, ended)], ended - began


@contextlib.asynccontextmanager
async def decoding(engine: Engine, chance: random.Random, streams: int) -> AsyncIterator[list[Stream]]:
    """Have streams that decode while the context is open; each has had some tokens when it opens."""
    all_streams = [Stream() for _ in range(streams)]
    tasks = [
        asyncio.create_task(_listen(engine, random_ids(chance, STREAM_PROMPT), one)) for one in all_streams
    ]
    try:
        await until(all_streams, MARGIN)
        yield all_streams
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _listen(engine: Engine, prompt: list[int], stream: Stream) -> None:
    """Note when each token of a request comes, until this is cancelled or the model's length is reached."""
    params = SamplingParams(
        temperature=0, max_tokens=None, ignore_eos=True, output_kind=RequestOutputKind.DELTA
    )
    async with contextlib.aclosing(engine.generate(prompt, params)) as outputs:  # type: ignore[type-var]
        async for _ in outputs:
            stream.times.append(time.perf_counter())


async def until(streams: Iterable[Stream], tokens: int) -> None:
    """Wait until each stream has had so many tokens."""
    while any(len(one.times) < tokens for one in streams):  # noqa: ASYNC110 (nothing says so)
        await asyncio.sleep(POLL_SECONDS)


def _report(chunks: list[float], alone: float, gaps: list[float], beside: float) -> dict[str, float]:
    chunk, gap = float(np.percentile(chunks, 99)), float(np.percentile(gaps, 99))
    milliseconds = {
        "chunk_median_ms": statistics.median(chunks),
        "chunk_p99_ms": chunk,
        "between_tokens_median_ms": statistics.median(gaps),
        "between_tokens_p99_ms": gap,
    }
    return {
        "chunks": len(chunks),
        **{name: round(1e3 * seconds, 2) for name, seconds in milliseconds.items()},
        "ratio": round(gap / chunk, 3),
        "prompt_alone_s": round(alone, 3),
        "prompt_beside_s": round(beside, 3),
    }
