"""Plays a recording to a topology: in simulated time to a stand-in for the model, or in real time to a model."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from pageant.actors.client.cast import DEFAULT_CAST, FRONTEND
from pageant.actors.client.resolved_models import resolve_topology
from pageant.actors.client.settings import topology_of
from pageant.actors.runtime.cluster import Cluster
from pageant.actors.runtime.loop import new_event_loop
from pageant.actors.runtime.recorder import Recorder
from pageant.actors.runtime.resolving import Resolved, resolve
from pageant.actors.runtime.simulation import Simulation
from pageant.actors.runtime.yaml import merge
from pageant.protocol.errors import PageantError
from pageant.scripts.engine_options import DEMO_MODEL
from pageant.scripts.replay.load import Load
from pageant.scripts.replay.player import Play, Player
from pageant.scripts.replay.timeline import Course

PLAYER = "pageant.scripts.replay.player:Player"
STAND_IN = "pageant.scripts.replay.stand_in:RecordedExecutor"
SECONDS_MAX = 30 * 24 * 3600.0
REPLAYED = "a replay"
"""Name of the topology in the recording of a replay."""


class ReplayFailed(PageantError):
    """The topology did not get to the end."""


def play_stand_in(
    path: Path, load: Load, given: Mapping[str, Any], speed: float | None, keep: Path | None = None
) -> tuple[list[Course], Resolved]:
    """Plays it to the recorded topology, as changed by `given`, over a stand-in for the model, in simulated time.

    Args:
        keep: a new file that becomes a recording of the replay.

    Returns:
        The courses of the requests, in order; and the topology.

    Raises:
        TopologyError: what is given cannot be.
        ReplayFailed: it did not get to the end.
    """
    cast = dataclasses.replace(
        DEFAULT_CAST,
        classes={
            "executor": STAND_IN,
            "detokenizer": DEFAULT_CAST.classes["detokenizer"],
            **{name: DEFAULT_CAST.classes[name] for name in ("scheduler", "blocks")},
            **load.classes(),
            FRONTEND: PLAYER,
        },
    )
    settings = dict(given)
    file = settings.pop("topology", None)
    settings.pop("model", None)
    topology = topology_of(None, file, merge(load.settings(), settings))
    actors = {
        name: msgspec.structs.replace(spec, node=None, nodes=None)
        for name, spec in topology.actors.items()
        if name in cast.classes or (name not in cast.optional and name not in DEFAULT_CAST.classes)
    }
    topology = msgspec.structs.replace(topology, placement="one", nodes={}, actors=actors, model=None)
    own = {"model": str(DEMO_MODEL), **_player(path, load, speed), "stand_in": True}
    own["windows"] = load.header.windows
    resolved = resolve(topology, cast, own)
    courses: list[Course] = []

    async def play(simulation: Simulation) -> None:
        recorder = None if keep is None else Recorder(simulation.cluster.node, keep, topology=REPLAYED)
        if recorder is not None:
            await recorder.start()
        courses.extend(await _play(simulation.cluster))
        if recorder is not None:
            await recorder.stop()

    outcome = Simulation(
        0, resolved, play, latency=lambda random: 0.0, offload_seconds=lambda random: 0.0
    ).run()
    if outcome.violation is not None:
        raise ReplayFailed(outcome.violation)
    return courses, resolved


def play_model(
    path: Path, load: Load, given: Mapping[str, Any], speed: float | None
) -> tuple[list[Course], Resolved]:
    """Plays it to a model, in real time: with the recorded topology's settings, under what is given, and to as many
    executors in a group. See `play_stand_in`."""
    settings = dict(given)
    file, model = settings.pop("topology", None), settings.pop("model", None)
    classes = {name: {"class": cls} for name, cls in load.classes().items()}
    player = {FRONTEND: {"class": PLAYER, "options": _player(path, load, speed)}}
    recorded = {**load.settings(), **load.group(), "actors": classes}
    topology = topology_of(model, file, merge(merge(recorded, settings), {"actors": player}))
    resolved = resolve_topology(topology)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(_run(resolved)), resolved


def _player(path: Path, load: Load, speed: float | None) -> dict[str, Any]:
    return {"recording": str(path), "replica": load.replica, "speed": speed}


async def _run(resolved: Resolved) -> list[Course]:
    cluster = Cluster(resolved, stop_order=(FRONTEND,))
    try:
        await cluster.start()
        async for _ in cluster.startup():
            pass
        return await _play(cluster)
    finally:
        await cluster.stop()


async def _play(cluster: Cluster) -> list[Course]:
    player = cluster.node.cells[FRONTEND].actor
    assert isinstance(player, Player)
    await cluster.node.ask(FRONTEND, Play(), SECONDS_MAX)
    return list(player.timeline.courses.values())
