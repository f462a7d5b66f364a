"""`pageant replay --until`, `--against` and `--keep`: states and differences of replays, step by step."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pageant.actors.runtime.classes import load_object
from pageant.actors.runtime.loop import new_event_loop
from pageant.actors.runtime.yaml import merge
from pageant.protocol.errors import BadRequest
from pageant.scripts.replay.load import read_load
from pageant.scripts.replay.run import play_stand_in
from pageant.scripts.replay.travel import as_data, as_lines, parting, parting_lines, state_at
from pageant.scripts.replay.viewer import serve
from pageant.scripts.report import publish


def until(
    file: Path,
    changes: Mapping[str, Any],
    step: int,
    *,
    speed: float | None,
    replica: str | None,
    json: Path | None,
) -> None:
    """Prints the plan, the queue and the use of blocks at a step of a recording; with changes, of its replay.

    Raises:
        PageantError: the file cannot be read, or has fewer steps.
    """
    with TemporaryDirectory() as folder:
        if changes:
            file, replica = _play(file, replica, changes, speed, Path(folder) / "replay"), None
        state = state_at(file, read_load(file, replica), step)
    publish({"recording": str(file), "state": as_data(state)}, as_lines(state), json)


def page(
    file: Path, changes: Mapping[str, Any], port: int, *, speed: float | None, replica: str | None
) -> None:
    """Serves a page with a slider over the steps of a recording; with changes, of its replay.

    Raises:
        PageantError: the file cannot be read, or the port cannot be had.
    """
    with TemporaryDirectory() as folder:
        if changes:
            file, replica = _play(file, replica, changes, speed, Path(folder) / file.name), None
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(serve(file, read_load(file, replica), port))


def against(
    file: Path,
    changes: Mapping[str, Any],
    other: str,
    *,
    speed: float | None,
    replica: str | None,
    json: Path | None,
) -> None:
    """Prints the first step at which two runs decide differently, with both decisions.

    Args:
        other: another recording, a policy, or the class of a policy or scheduler. With a recording, both are read
            as they are; else both runs are replays of `file`, alike in all but that.

    Raises:
        PageantError: a file cannot be read, or the two are of other requests.
    """
    began = time.perf_counter()
    with TemporaryDirectory() as folder:
        if Path(other).is_file():
            paths, names = (file, Path(other)), (file.name, Path(other).name)
            replicas: tuple[str | None, str | None] = replica, replica
            if changes:
                raise BadRequest(
                    f"two recordings are compared as they are; leave out {', '.join(sorted(changes))}, or name a "
                    "policy or class with --against",
                    "against",
                )
        else:
            runs = (changes, merge(changes, _change(other)))
            paths = tuple(  # type: ignore[assignment]
                _play(file, replica, run, speed, Path(folder) / str(place)) for place, run in enumerate(runs)
            )
            names, replicas = (f"{file.name} as it was" if not changes else "the first", other), (None, None)
        loads = [read_load(path, of) for path, of in zip(paths, replicas, strict=True)]
        found, same = parting((paths[0], loads[0]), (paths[1], loads[1]))
    data = {
        "runs": names,
        "same_steps": same,
        "step": None if found is None else found.step,
        "first": None if found is None else as_data(found.first),
        "second": None if found is None else as_data(found.second),
        "wall_seconds": round(time.perf_counter() - began, 2),
    }
    publish(data, parting_lines(names, found, same), json)


def keep(
    file: Path, changes: Mapping[str, Any], new: Path | None, *, speed: float | None, replica: str | None
) -> None:
    """Writes the replay of a recording as a recording.

    Raises:
        PageantError: a file cannot be read or written.
    """
    assert new is not None
    if new.exists():
        raise BadRequest(f"{new} exists; expected a new file", "keep")
    _play(file, replica, changes, speed, new)


def _play(
    file: Path, replica: str | None, changes: Mapping[str, Any], speed: float | None, keep: Path
) -> Path:
    play_stand_in(file, read_load(file, replica), changes, speed, keep)
    return keep


def _change(name: str) -> dict[str, Any]:
    """Return the change of a topology that a name stands for: a scheduler's class, or a policy."""
    if ":" in name and not hasattr(load_object(name, "against"), "order"):
        return {"actors": {"scheduler": {"class": name}}}
    return {"policy": name}
