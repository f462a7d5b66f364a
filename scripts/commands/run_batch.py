"""`pageant run-batch`: a file of requests in, a file of answers out."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import secrets
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from pageant.actors.client.cast import HTTP
from pageant.actors.client.progress import BatchProgress, LoadProgress
from pageant.actors.runtime.loop import new_event_loop
from pageant.actors.runtime.yaml import merge
from pageant.protocol.errors import BadRequest
from pageant.scripts.batch.drive import Tally, drive, line
from pageant.scripts.batch.lines import Answered, answered, read
from pageant.scripts.commands.serve import session_of
from pageant.scripts.http_client import Client

REASONS_MAX = 3  # of failures that are shown, the most frequent first
STREAM = "-"  # standard input or output


def run_batch(
    engine_arguments: dict[str, Any],
    source: str,
    target: str,
    *,
    errors: Path | None,
    url: str | None,
    api_key: str | None,
    concurrency: int,
    resume: bool,
) -> int:
    """Answers every request of a file. Returns how many failed.

    Args:
        errors: where answers that are errors go, apart from the others.
        url: of a server that is there; without one, a model is served for as long as it takes.
        resume: what was answered is not asked again; what failed is.

    Raises:
        BadRequest: the file is not as it should be; nothing was run.
    """
    data = sys.stdin.buffer.read() if source == STREAM else _content(Path(source))
    requests = read(data.splitlines())
    if resume:
        if target == STREAM:
            raise BadRequest("what went to standard output cannot be read again: expected a file", "output")
        done = _answered(Path(target)) | (_answered(errors) if errors is not None else set())
        requests = [asked for asked in requests if asked.custom_id not in done]
    _check_apart(source, target, errors)
    with contextlib.ExitStack() as stack:
        out = sys.stdout.buffer if target == STREAM else stack.enter_context(_opened(Path(target), "ab"))
        failed = stack.enter_context(_opened(errors, "ab")) if errors is not None else out
        client = stack.enter_context(_client(engine_arguments, url, api_key))
        if not resume:  # only now: what is there is not lost to a model that cannot be served
            for file in {out, failed} - {sys.stdout.buffer}:
                with contextlib.suppress(OSError):  # a pipe holds nothing
                    file.truncate(0)
        began = time.perf_counter()
        shown = sys.stderr.isatty() and target != STREAM
        bar = stack.enter_context(BatchProgress(shown, len(requests)))

        def write(answer: Answered) -> None:
            file = out if answer.succeeded else failed
            file.write(line(answer))
            file.flush()

        def update(tally: Tally) -> None:
            bar.update(tally.ended, tally.output_tokens)

        async def run() -> Tally:
            try:
                return await drive(client, requests, concurrency, write, update)
            finally:
                client.close()
                await asyncio.sleep(0)  # connections close in the loop's next round

        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            tally = runner.run(run())
        seconds = time.perf_counter() - began
    rate = tally.output_tokens / seconds
    said = (
        f"{tally.succeeded} answered, {tally.failed} failed in {seconds:.1f} s ({rate:,.0f} output tokens/s)"
    )
    print(said, file=sys.stderr)
    for reason, count in tally.reasons.most_common(REASONS_MAX):
        print(f"pageant: {count} failed: {reason}", file=sys.stderr)
    if (rest := len(tally.reasons) - REASONS_MAX) > 0:
        print(f"pageant: and {rest} other reasons; the output has every failure", file=sys.stderr)
    return tally.failed


@contextlib.contextmanager
def _client(engine_arguments: dict[str, Any], url: str | None, api_key: str | None) -> Iterator[Client]:
    """Open a client to a server that is there, or to one of our own, which nobody else can ask."""
    if url is not None:
        yield Client(url, api_key)
        return
    key = secrets.token_hex(16)
    own = {"actors": {HTTP: {"options": {"host": "127.0.0.1", "port": 0, "api_keys": [key]}}}}
    session = session_of(merge(engine_arguments, own), None)
    try:
        with LoadProgress(sys.stderr.isatty()) as bar:
            session.start(bar.update)
        yield Client(session.served_at().split()[-1], key)
    finally:
        session.stop()


def _check_apart(source: str, target: str, errors: Path | None) -> None:
    """Refuses files that would be written over one another."""
    files = [("input", Path(source))] if source != STREAM else []
    files += [("output", Path(target))] if target != STREAM else []
    files += [("errors", errors)] if errors is not None else []
    for (name, one), (other_name, other) in itertools.combinations(files, 2):
        if one.resolve() == other.resolve():
            raise BadRequest(
                f"{other_name} is {other}, which is the {name} too; expected another file", other_name
            )


def _opened(path: Path, mode: str) -> BinaryIO:
    try:
        return path.open(mode)  # type: ignore[return-value]
    except OSError as error:
        raise BadRequest(f"{path}: {error.strerror}", "output") from None


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise BadRequest(f"{path}: {error.strerror}", "input") from None


def _answered(path: Path) -> set[str]:
    """The ids that a file has answers to. What is to be asked again is taken out of it, and a last line that was cut
    off."""
    if not path.exists():
        return set()
    data = path.read_bytes()
    try:
        kept = dict(answered(data[: data.rfind(b"\n") + 1].splitlines()))
    except BadRequest as error:
        raise BadRequest(f"{path} cannot be gone on with: {error}", error.parameter) from None
    rest = b"".join(line + b"\n" for line in kept.values())
    if rest != data:
        beside = path.with_name(f"{path.name}.rest")
        beside.write_bytes(rest)
        beside.replace(path)
    return set(kept)
