"""Calibration: a short run of a model on this machine, over HTTP, from which times of steps and of serving are fitted.

The client is a process of its own, as users' are. On a machine whose cores the server shares with it, that is in the
times of steps, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import numpy as np

import pageant
from pageant.actors.client.cast import HTTP
from pageant.actors.runtime.loop import new_event_loop
from pageant.actors.runtime.recorder import KINDS
from pageant.actors.runtime.recording import RecordingReader
from pageant.actors.runtime.yaml import merge
from pageant.protocol.errors import BadRequest, StartupError
from pageant.protocol.storing import Reserve
from pageant.scripts.copies import Copies, Way
from pageant.scripts.planning.asking import OUTPUT_TOKENS, Asked, Asking
from pageant.scripts.planning.serving_costs import NO_SERVING, Seen, ServingCosts, step_before
from pageant.scripts.replay.costs import StepCosts
from pageant.scripts.replay.load import Load, read_load
from pageant.scripts.server_process import free_port

__all__ = ["Calibration", "calibrate", "calibrate_copies"]

TOGETHER = (1, 4, 16, 2, 8, 32, 1, 3, 12, 24, 2, 6, 1)
"""Requests that are open at a time, in the rounds of the run. Sizes alternate: what disturbs the machine for a while
strikes all of them.
"""
WARM_UP = (1, 16)
USERS = ((1, 12), (3, 18), (8, 32), (20, 40))
"""Users who each ask again when their answer has come, and how often all of them ask. Their outputs differ in length,
so that prompts are computed beside outputs.
"""
LINE_BYTES_MAX = 1 << 26
"""The most bytes of what the client says of all its requests."""
CALIBRATED_STORE = "64MiB"
WAYS: tuple[Way, ...] = ("save", "restore")
COPIED_BLOCKS, COPIES, LAYERS, HEADS = 64, 8, 4, 2
"""Blocks of a copy whose time is taken, how often each way, and the parts of a block."""


@dataclass(frozen=True)
class Calibration:
    """Recording of a load, with the costs of its steps, and what serving takes beside them."""

    load: Load
    serving: ServingCosts = NO_SERVING

    @classmethod
    def merged(cls, several: Sequence[Calibration]) -> Calibration:
        """Return what several calibrations of one set-up measured, at least one, with the recording of the first."""
        costs = StepCosts.merged(one.load.costs for one in several)
        return cls(
            replace(several[0].load, costs=costs), ServingCosts.merged([one.serving for one in several])
        )


def calibrate(path: Path, settings: Mapping[str, Any]) -> Calibration:
    """Run a model, and return what was measured. The recording of it is written to a new file.

    Replicas run at once, with as many requests each, so that what they take from one another is in the times. The
    recording is then that of the first.

    Args:
        settings: of the engine, with its `model`.
    """
    replicas = int(settings.get("replicas") or 1)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        asked = runner.run(_run(path, dict(settings), replicas))
    load = read_load(path, "replica-0/" if replicas > 1 else None)
    return Calibration(load, ServingCosts.of([*_seen(load, asked)]))


def calibrate_copies(path: Path, settings: Mapping[str, Any]) -> float:
    """Return the seconds that the block of a token takes to be copied to a store or from it, in the median.

    An engine with a store says how large a slot is. Copies of slots of that size are then timed here.

    Args:
        path: a new file for a recording of what is reserved.
        settings: of the engine, with its `model`; the number of replicas there is of no account.
    """
    own = {name: value for name, value in settings.items() if name != "replicas"}
    own.setdefault("store_memory", CALIBRATED_STORE)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(_run_stored(path, own))
    with RecordingReader(path) as reader:
        block_size = reader.header.block_size
        found = [reader.decode(message) for message in reader.messages() if message.kind == "Reserve"]
    sizes = [one.slot_bytes for one in found if isinstance(one, Reserve)]
    if not sizes or not block_size:
        raise BadRequest("no block was saved while copies were measured; expected --copy-rate", "copy_rate")
    copies = Copies(COPIED_BLOCKS, LAYERS, HEADS, max(8, sizes[0] // (2 * LAYERS * HEADS) // 8 * 8))
    took: list[float] = []
    for _ in range(COPIES):
        for way in WAYS:
            began = time.perf_counter()
            copies.move(way)
            took.append(time.perf_counter() - began)
    return median(took[len(WAYS) :]) / COPIED_BLOCKS / block_size


async def _run_stored(path: Path, settings: dict[str, Any]) -> None:
    async with _serving(settings) as (engine, client), engine.record(path, kinds=(*KINDS, "Reserve")):
        await client.ask(WARM_UP)


async def _run(path: Path, settings: dict[str, Any], replicas: int) -> list[Asked]:
    rounds, warm_up = (tuple(replicas * one for one in some) for some in (TOGETHER, WARM_UP))
    users = tuple((replicas * one, replicas * count) for one, count in USERS)
    async with _serving(settings) as (engine, client):
        await client.ask(warm_up, seed=1)  # what is compiled, or allocated on first use, does not count
        async with engine.record(path):
            return await client.ask(rounds, users)


@asynccontextmanager
async def _serving(settings: dict[str, Any]) -> AsyncIterator[tuple[pageant.Engine, _Client]]:
    """Run an engine with an HTTP server, and its client in another process."""
    port = free_port()
    server = {HTTP: {"options": {"host": "127.0.0.1", "port": port, "page": False}}}
    own = {**settings, "actors": merge(dict(settings.get("actors") or {}), server)}
    async with pageant.Engine(own.pop("model", None), **own) as engine:
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "pageant.scripts.planning.asking"),
            stdin=pipe,
            stdout=pipe,
            limit=LINE_BYTES_MAX,
        )
        try:
            longest = max(1, engine.max_model_len - 2 * OUTPUT_TOKENS)
            yield engine, _Client(process, f"http://127.0.0.1:{port}", longest)
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


class _Client:
    """A process that asks a server.

    Args:
        longest: the most tokens of a prompt.
    """

    def __init__(self, process: asyncio.subprocess.Process, url: str, longest: int) -> None:
        self._process, self._url, self._longest = process, url, longest

    async def ask(
        self, rounds: tuple[int, ...], users: tuple[tuple[int, int], ...] = (), seed: int = 0
    ) -> list[Asked]:
        """Ask; see `Asking`.

        Raises:
            StartupError: the process ended.
        """
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None, "they are pipes"
        stdin.write(msgspec.json.encode(Asking(self._url, self._longest, rounds, users, seed)) + b"\n")
        said = await stdout.readline()
        if not said:
            raise StartupError(f"the client of the calibration ended with {await self._process.wait()}")
        return msgspec.json.decode(said, type=list[Asked])


def _seen(load: Load, asked: Sequence[Asked]) -> Iterator[Seen]:
    """Yield the requests that a client and a recording have in common."""
    since = time.time() - time.perf_counter()
    courses = {
        submit.prompt_token_ids.tobytes(): course
        for submit, course in zip(load.submits, load.courses, strict=True)
    }
    for one in asked:
        course = courses.get(np.array(one.prompt, np.int32).tobytes())
        if course is None or course.first_at is None:
            continue
        step = step_before(load.step_ends, course.first_at)
        if step is not None:
            yield Seen(one.together, one.due + since, course.submitted_at, step, one.first_at + since)
