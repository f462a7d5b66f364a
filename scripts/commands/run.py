"""`pageant run`: one prompt, streamed."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from pageant.actors.client.engine import Engine
from pageant.actors.client.outputs import RequestOutput
from pageant.actors.client.progress import LoadProgress
from pageant.protocol.errors import BadRequest
from pageant.protocol.sampling import SamplingParams
from pageant.scripts.commands.pool import describe

STDIN = "-"


def run(
    prompt: str,
    engine_arguments: dict[str, Any],
    params: SamplingParams,
    *,
    system: str | None = None,
    raw: bool,
    timings: bool,
    pool: bool,
) -> None:
    """Prints the answer as it comes; afterwards, if asked for, how the KV pool stands and how long everything
    took.

    Args:
        prompt: what to ask; `-` stands for standard input.
        system: a system message before it.
    """
    clock = Timings()
    if prompt == STDIN:
        prompt = sys.stdin.read()
    if not prompt.strip():
        raise BadRequest("the prompt is empty; expected a text, or - to read standard input", "PROMPT")
    try:
        with asyncio.Runner() as runner:
            runner.run(_answer(engine_arguments, _asked(prompt, system), params, raw, clock, pool))
    finally:
        if timings:
            clock.print()


def _asked(prompt: str, system: str | None) -> list[dict[str, str]]:
    """The messages of a prompt with its system message."""
    before = [{"role": "system", "content": system}] if system else []
    return [*before, {"role": "user", "content": prompt}]


async def start(engine_arguments: dict[str, Any]) -> Engine:
    """An engine that is ready; a progress bar is shown while it loads, and gone afterwards."""
    with LoadProgress(sys.stderr.isatty()) as bar:
        engine = Engine(**engine_arguments, on_progress=bar.update)
        await engine.start()
    return engine


async def _answer(
    engine_arguments: dict[str, Any],
    messages: list[dict[str, str]],
    params: SamplingParams,
    raw: bool,
    clock: Timings,
    pool: bool,
) -> None:
    async with await start(engine_arguments) as engine:
        clock.ready = time.perf_counter()
        async for output in ask(engine, messages, params, raw):
            clock.token(output)
            print(output.outputs[0].new_text, end="", flush=True)
        print()
        if pool:
            for label, text in describe(await engine.pool_statistics()):
                print(f"{label:>14}: {text}", file=sys.stderr)


def ask(
    engine: Engine, messages: list[dict[str, str]], params: SamplingParams, raw: bool
) -> AsyncIterator[RequestOutput]:
    """Answer a conversation; complete its texts as they are where `raw` is set or there is no chat template."""
    if not raw and engine.has_chat_template:
        return engine.chat(messages, params)
    if not raw:
        print("pageant: the model has no chat template: it completes the prompt as it is", file=sys.stderr)
    return engine.generate("\n\n".join(message["content"] for message in messages), params)


class Timings:
    """Times of events, from the start of the process."""

    def __init__(self) -> None:
        self.began = time.perf_counter() - _seconds_since_process_start()
        self.imported = time.perf_counter()
        self.ready = self.first = self.last = 0.0
        self.num_tokens = 0

    def token(self, output: RequestOutput) -> None:
        """An output has come."""
        self.last = time.perf_counter()
        self.first = self.first or self.last
        self.num_tokens = len(output.outputs[0].token_ids)

    def print(self) -> None:
        """Print the times to standard error."""
        rows = [("command line", self.imported), ("ready", self.ready), ("first token", self.first)]
        for name, moment in rows:
            if moment:
                print(
                    f"{name:>14}: {moment - self.began:6.2f} s from the start of the process", file=sys.stderr
                )
        if self.num_tokens > 1 and self.last > self.first:
            rate = (self.num_tokens - 1) / (self.last - self.first)
            print(
                f"{'output':>14}: {self.num_tokens} tokens, {rate:.1f} tokens/s after the first",
                file=sys.stderr,
            )


def _seconds_since_process_start() -> float:
    """Return the age of this process; 0 where the system does not say."""
    try:
        started_ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        uptime = float(Path("/proc/uptime").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return 0.0
    return uptime - started_ticks / os.sysconf("SC_CLK_TCK")
