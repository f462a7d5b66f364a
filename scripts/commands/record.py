"""`pageant record`: keeps what the actors of a topology that runs here are told."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from pageant.actors.runtime.loop import new_event_loop
from pageant.actors.runtime.recorder import KINDS, Recorder
from pageant.actors.runtime.visiting import choose, visit
from pageant.protocol.checks import expected
from pageant.protocol.errors import BadRequest, PageantError
from pageant.protocol.recording import EVERY_KIND
from pageant.protocol.schema import protocol_kinds


def record(
    file: Path,
    topology: str | None,
    seconds: float | None,
    *,
    texts: bool,
    kinds: Sequence[str] | None,
    keys: str | None,
) -> None:
    """Records until the time is over, or a signal comes.

    Raises:
        PageantError: the topology cannot be reached, or the file cannot be written.
    """
    known = {EVERY_KIND, *(kind.__name__ for kind in protocol_kinds())}
    for kind in kinds or ():
        if kind not in known:
            raise BadRequest(f"no message is called {kind!r}; {expected(kind, known)}", "kind")
    running = choose(topology)
    try:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(
                _record(file, running.endpoint, running.name, seconds, texts, tuple(kinds or KINDS), keys)
            )
    except OSError as error:
        raise PageantError(f"{file}: {error.strerror or error}") from None


async def _record(
    file: Path,
    endpoint: str,
    name: str,
    seconds: float | None,
    texts: bool,
    kinds: tuple[str, ...],
    keys: str | None,
) -> None:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    async with visit(endpoint, keys) as found:
        recorder = Recorder(found.node, file, topology=name, kinds=kinds, texts=texts, look=found.look)
        began = time.monotonic()
        await recorder.start()
        kept = "texts" if texts else "token ids, no texts"
        print(f"recording {name} to {file} ({kept})", file=sys.stderr, flush=True)
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await _first(stopped, recorder.failed)
        finally:
            await recorder.stop()
    writer = recorder.writer
    print(
        f"{writer.messages} messages, {writer.bytes} bytes in {time.monotonic() - began:.1f} s"
        + (f"; {writer.dropped} were dropped" if writer.dropped else ""),
        file=sys.stderr,
    )


async def _first(*events: asyncio.Event) -> None:
    tasks = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
