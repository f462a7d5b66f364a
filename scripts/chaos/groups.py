"""`pageant chaos --groups`: each executor of each shape of a group fails in each way while requests stream."""

from __future__ import annotations

import asyncio
import itertools
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pageant.actors.client.engine import Engine
from pageant.actors.runtime.cell import END_SECONDS_MAX
from pageant.actors.runtime.yaml import merge
from pageant.protocol.supervision import ActorEntry, Directory, GetDirectory
from pageant.scripts.chaos.failing import FAILING, FAULTS, have_fail
from pageant.scripts.chaos.leftovers import Held, most_threads, segments_of
from pageant.scripts.chaos.load import Load, losses, mixed_requests, undisturbed, verdict
from pageant.scripts.report import publish, table

SHAPES: dict[str, dict[str, int]] = {
    "tensor 2": {"tensor_parallel": 2},
    "pipeline 2": {"pipeline_parallel": 2},
    "tensor 2 x pipeline 2": {"tensor_parallel": 2, "pipeline_parallel": 2},
}
SETTINGS: dict[str, Any] = {
    "dtype": "float32",
    "threads": 1,
    "max_num_seqs": 64,
    "step_patience": 2.0,
    "heartbeat_seconds": 0.5,
    "suspicion_seconds": 3.0,
}
PAUSE_SECONDS_MAX = 2.0
"""Longest that a stream may bring nothing for, beside the time until the group is ready again."""
SLACK_SECONDS = 2.0
"""How much later than it has to a failure may be noticed."""
RECOVERY_SECONDS_MAX = 90.0
LOOK_SECONDS = 0.02
HEADINGS = ("rank, fault", "times", "noticed, s", "ready, s", "paused, s", "longest pause, s", "over the bar")


@dataclass(frozen=True)
class Fall:
    """A fall of a group: how its cause was seen, and what it cost. Times are seconds since the failure.

    Args:
        noticed: until the supervisor took the group for fallen.
        ready: until its next life was up.
        paused: the longest that any stream brought nothing for.
        lives: how many lives of the group began.
        deaths: how many deaths the supervisor counted.
    """

    rank: int
    fault: str
    noticed: float
    ready: float
    paused: float
    lives: int
    deaths: int

    def misses(self, noticed_max: float) -> list[str]:
        """Return the bars that this fall misses.

        Args:
            noticed_max: seconds until it should have been noticed.
        """
        late = self.paused - self.ready
        bars = {
            f"noticed after {self.noticed:.2f} s, not {noticed_max:g}": self.noticed > noticed_max,
            f"streams paused for {self.paused:.2f} s, {late:.2f} s longer than the group was away": (
                late > PAUSE_SECONDS_MAX
            ),
            f"{self.lives} lives of the group began, not 1": self.lives != 1,
            f"{self.deaths} deaths were counted, not 1": self.deaths != 1,
        }
        return [f"rank {self.rank}, {self.fault}: {bar}" for bar, is_missed in bars.items() if is_missed]


def groups(engine: dict[str, Any], *, cycles: int, requests: int, tokens: int, path: Path | None) -> int:
    """Print what became of the requests, shape by shape. Return how many bars were missed.

    Args:
        engine: arguments of the engine, over `SETTINGS`.
        cycles: how often each rank fails, in one way after another; 0 for each way once.
        requests: that stream at a time.
        tokens: output tokens of each request, about.
        path: where the figures go as JSON.
    """
    given = merge(SETTINGS, {key: value for key, value in engine.items() if value is not None})
    figures: dict[str, Any] = {
        "settings": given | {"model": Path(given.get("model") or "").name},
        "shapes": {},
    }
    lines: list[str] = []
    missed: list[str] = []
    for name in SHAPES:
        found = asyncio.run(run(given, name, cycles=cycles or len(FAULTS), requests=requests, tokens=tokens))
        figures["shapes"][name] = found
        missed += [f"{name}: {bar}" for bar in bars_missed(found)]
        rows = [(label, *row.values()) for label, row in found["falls"].items()]
        lines += [name, *table(HEADINGS, rows), *verdict(found), ""]
    publish(figures, [*lines, *(missed or ["every bar holds"])], path)
    return len(missed)


def bars_missed(figures: Mapping[str, Any]) -> list[str]:
    """Return what a run of one shape did not hold of what it should."""
    return [
        *losses(figures),
        *figures["missed"],
        *(f"left: {one}" for one in figures["left"]),
    ]


async def run(
    settings: dict[str, Any], shape: str, *, cycles: int, requests: int, tokens: int
) -> dict[str, Any]:
    """Figures of one shape: each rank fails once in every cycle.

    Args:
        shape: one of `SHAPES`.
    """
    asked = mixed_requests(requests, tokens)
    falls: list[Fall] = []
    left: list[str] = []
    before = Held.now()
    with tempfile.TemporaryDirectory(prefix="pageant-chaos-") as folder:
        entry = {**FAILING, "options": {"faults": folder, **SHAPES[shape]}}
        engine = Engine(**merge(settings, {"actors": {"executor": entry}}))
        async with engine:
            load = Load(engine, asked, await undisturbed(engine, asked))
            load.begin()
            await asyncio.sleep(1.0)
            segments, threads = (
                segments_of(await _processes(engine)),
                [most_threads(await _processes(engine))],
            )
            size = len(await _members(engine))
            for cycle, rank in itertools.product(range(cycles), range(size)):
                fault = FAULTS[(cycle + rank) % len(FAULTS)]
                falls.append(await _fail(engine, load, Path(folder), rank, fault))
                mapped = segments_of(await _processes(engine))
                if len(mapped) > len(segments):
                    left.append(f"{len(mapped) - len(segments)} segments after rank {rank}, {fault}")
                threads.append(most_threads(await _processes(engine)))
            await load.end()
    left += await before.outlived_by()
    missed = [bar for fall in falls for bar in fall.misses(_noticed_max(fall.fault, settings))]
    return {
        **{"streams": requests, "cycles": cycles, "requests": load.requests, "tokens": load.tokens},
        **{"lost": load.lost, "changed": load.changed, "left": left, "missed": missed},
        "threads_of_a_process": {"before": threads[0], "most": max(threads), "after": threads[-1]},
        "falls": summary(falls),
    }


def _noticed_max(fault: str, settings: Mapping[str, Any]) -> float:
    """Return the seconds after which a failure should be noticed."""
    waited: dict[str, float] = {
        # A process may have answered just before it stopped, and is looked for once per heartbeat.
        "stop": settings["suspicion_seconds"] + 2 * settings["heartbeat_seconds"],
        # The leader sees that a step does not return; its own thread is given time to come back.
        "loop": settings["step_patience"] + END_SECONDS_MAX,
    }
    return waited.get(fault, 0.0) + SLACK_SECONDS


async def _fail(engine: Engine, load: Load, folder: Path, rank: int, fault: str) -> Fall:
    """Have a rank fail. Return when all streams go on.

    Raises:
        TimeoutError: they do not within `RECOVERY_SECONDS_MAX`.
    """
    before = (await _members(engine))[0]
    have_fail(folder, rank, fault)
    at = time.monotonic()
    noticed: float | None = None
    try:
        async with asyncio.timeout(RECOVERY_SECONDS_MAX):
            while True:
                members = await _members(engine)
                first = members[0]
                since = time.monotonic() - at
                if noticed is None and (first.incarnation > before.incarnation or not first.up):
                    noticed = since
                if noticed is not None and all(one.up for one in members):
                    break
                await asyncio.sleep(LOOK_SECONDS)
            await load.all_have_moved(time.monotonic())
    except TimeoutError:
        stuck = load.waiting_since(at)
        raise TimeoutError(f"after rank {rank} failed ({fault}), requests {stuck} wait; {members}") from None
    after = (await _members(engine))[0]
    return Fall(
        rank=rank,
        fault=fault,
        noticed=round(noticed, 3),
        ready=round(since, 3),
        paused=round(load.pause(at), 3),
        lives=after.incarnation - before.incarnation,
        deaths=after.restarts - before.restarts,
    )


async def _members(engine: Engine) -> list[ActorEntry]:
    """Return the group's entries in the directory, the leader first."""
    directory: Directory = await engine.ask("supervisor", GetDirectory())
    found = [one for one in directory.actors if one.name.startswith("executor/")]
    return sorted(found, key=lambda one: int(one.name.rpartition("/")[2]))


async def _processes(engine: Engine) -> list[int]:
    """Return the processes of the topology."""
    directory: Directory = await engine.ask("supervisor", GetDirectory())
    return [node.pid for node in directory.nodes]


def summary(falls: Sequence[Fall]) -> dict[str, Any]:
    """Return by rank and fault how often it happened, and its times in seconds."""
    found: dict[str, Any] = {}
    for rank, fault in sorted({(fall.rank, fall.fault) for fall in falls}):
        some = [fall for fall in falls if (fall.rank, fall.fault) == (rank, fault)]
        found[f"rank {rank}, {fault}"] = {
            "times": len(some),
            **{
                f"{name}_median": _median([getattr(one, name) for one in some])
                for name in ("noticed", "ready", "paused")
            },
            "paused_max": round(max(one.paused for one in some), 2),
            "over_the_bar": sum(one.paused > one.ready + PAUSE_SECONDS_MAX for one in some),
        }
    return found


def _median(seconds: Sequence[float]) -> float:
    return round(sorted(seconds)[len(seconds) // 2], 2)
