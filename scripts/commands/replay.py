"""`pageant replay`: asks of another topology what a recorded one was asked, and shows how the two differ."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pageant.actors.runtime.yaml import merge
from pageant.scripts.replay.compare import as_data, as_table, comparable, differences, figures
from pageant.scripts.replay.load import Load, read_load
from pageant.scripts.replay.run import play_model, play_stand_in
from pageant.scripts.report import publish


def replay(
    file: Path,
    engine: Mapping[str, Any],
    *,
    policy: str | None,
    scheduler: str | None,
    speed: float | None,
    real: bool,
    replica: str | None,
    requests: bool,
    json: Path | None,
) -> None:
    """Plays a recording and says what came of it.

    Args:
        speed: None is all at once.

    Raises:
        PageantError: the file cannot be read, or the topology does not get to the end.
    """
    load = read_load(file, None if replica is None else f"{replica}/" if replica else "")
    changes = with_classes(engine, policy, scheduler)
    _remark(load)
    names, runs = ["recorded"], [load.courses]
    took: dict[str, float] = {}
    plays: dict[str, Mapping[str, Any]] = {}
    if real:
        plays["replayed"] = changes
    else:
        plays["replayed as it was"] = {}
        changes.pop("model", None)
        if changes:
            plays[f"replayed with {_named(changes)}"] = changes
    for name, settings in plays.items():
        began = time.perf_counter()
        played, _ = (play_model if real else play_stand_in)(file, load, settings, speed)
        took[name] = round(time.perf_counter() - began, 2)
        names.append(name)
        runs.append(played)
    compared = comparable(runs)
    found = [figures(run, compared) for run in runs]
    differ = [None, *(differences(runs[i], runs[i + 1], compared) for i in range(len(runs) - 1))]
    data = {
        "recording": str(file),
        "requests": len(load.courses),
        "compared": len(compared),
        "begun_before": load.begun_before,
        "dropped": load.dropped,
        "whole": load.whole,
        "step_seconds": None if real else asdict(load.costs.fitted),
        "wall_seconds": took,
        "runs": as_data(names, runs, found, differ, requests=requests),
    }
    lines = as_table(names, found, differ)
    lines.append(
        f"latencies are of the {len(compared)} of {len(load.courses)} requests that all served to the end"
    )
    publish(data, lines, json)


def with_classes(engine: Mapping[str, Any], policy: str | None, scheduler: str | None) -> dict[str, Any]:
    """Return the settings of a topology with another policy, and another scheduler's class."""
    changes = dict(engine)
    if policy is not None:
        changes["policy"] = policy
    if scheduler is not None:
        changes = merge(changes, {"actors": {"scheduler": {"class": scheduler}}})
    return changes


def _named(changes: Mapping[str, Any], prefix: str = "") -> str:
    """Changes as a column's heading: `policy=fair`."""
    parts = [
        _named(value, f"{prefix}{name}.") if isinstance(value, Mapping) else f"{prefix}{name}={value}"
        for name, value in changes.items()
    ]
    return ", ".join(parts).replace("actors.scheduler.class=", "scheduler=")


def _remark(load: Load) -> None:
    """Return what is to be known of the recording."""
    remarks = []
    if not load.whole:
        remarks.append("it was cut off: what is there is played")
    if load.dropped:
        remarks.append(f"{load.dropped} messages were dropped while it was made")
    if load.begun_before:
        remarks.append(f"{load.begun_before} requests had begun before it, and are left out")
    if len(load.weight_versions) > 1:
        versions = len(load.weight_versions)
        remarks.append(f"weights of {versions} versions answered; a model that it is played to has its own")
    for remark in remarks:
        print(f"the recording: {remark}", file=sys.stderr)
