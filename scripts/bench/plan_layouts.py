"""Layouts of replicas that are planned and then served: what `pageant bench plan` and `pageant bench level` compare."""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from pageant.actors.runtime.loop import new_event_loop
from pageant.protocol.errors import BadRequest
from pageant.scripts.planning.calibration import Calibration, calibrate, calibrate_copies
from pageant.scripts.planning.cluster import PlannedCluster
from pageant.scripts.planning.driving import drive
from pageant.scripts.planning.outcome import Outcome, summed_up
from pageant.scripts.planning.requests import PlannedRequest
from pageant.scripts.planning.shapes import shape_of
from pageant.scripts.tuning.serving import server_of
from pageant.scripts.tuning.workloads import Drawn, Part

__all__ = ["VOCABULARY", "Layout", "LayoutShape", "drawn_requests", "warm_up_of"]

VOCABULARY = 250
"""Token ids of prompts, which every vocabulary has."""
LATE_SECONDS = 300.0
"""Requests have so long after the last arrival: with all of them at once, the last ones wait."""
STORE = "256MiB"
"""Memory for blocks that replicas hand over."""


@dataclass(frozen=True)
class LayoutShape:
    """Numbers of replicas: alike, or `prefills` that compute prompts for the others."""

    replicas: int
    prefills: int = 0

    @classmethod
    def parse(cls, text: str) -> LayoutShape:
        """Parse `2`, or `1+1`: one replica for prompts, and one for outputs.

        Raises:
            BadRequest: anything else.
        """
        found = re.fullmatch(r"\s*([1-9]\d?)(?:\+([1-9]\d?))?\s*", text)
        if found is None:
            raise BadRequest(f"replicas is {text!r}; expected numbers such as 1,2 or 1+1", "replicas")
        first, others = int(found[1]), int(found[2] or 0)
        return cls(first + others, first if others else 0)

    def settings(self) -> dict[str, Any]:
        """Return the settings of a topology with so many replicas."""
        if not self.prefills:
            return {"replicas": self.replicas} if self.replicas > 1 else {}
        return {
            "replicas": {
                "prefill": {"count": self.prefills},
                "decode": {"count": self.replicas - self.prefills},
            },
            "actors": {
                "store": {"options": {"memory": STORE}},
                "router": {"options": {"handover": "always"}},
            },
        }

    def __str__(self) -> str:
        return f"{self.prefills}+{self.replicas - self.prefills}" if self.prefills else str(self.replicas)


class Layout:
    """Replicas of one shape that can be calibrated, planned and served here.

    Args:
        folder: for topologies and recordings.
        settings: of the engine, with its model.
        threads: of each replica.
    """

    def __init__(self, folder: Path, settings: dict[str, Any], layout: LayoutShape, threads: int) -> None:
        self.layout = layout
        self._folder = folder
        own = {**settings, "threads": threads, "enable_prefix_caching": True}
        # Kinds of replicas differ in what they are asked, not in how fast they are.
        self._measured = own | LayoutShape(layout.replicas).settings()
        self._topology = folder / f"{layout}-{threads}.yaml"
        self._topology.write_text(yaml.safe_dump(own | layout.settings()))
        self._number = itertools.count()
        self._copy_seconds: float | None = None
        if layout.prefills:
            self._copy_seconds = calibrate_copies(self._path("copies"), own)

    def calibrate(self) -> Calibration:
        """Measure the times of steps, and of serving, as they are now."""
        return calibrate(self._path("steps"), self._measured)

    def longest(self, calibration: Calibration) -> int:
        """Return the most tokens of a request."""
        return shape_of(calibration.load, self._measured).max_model_len

    def plan(self, calibration: Calibration, requests: Sequence[PlannedRequest]) -> Outcome:
        """Return what is expected of these requests."""
        options: dict[str, Any] = {"serving": calibration.serving}
        if self.layout.prefills:
            options |= {"prefills": self.layout.prefills, "handover": "always"}
            options["copy_seconds"] = self._copy_seconds
        shape, speeds = shape_of(calibration.load, self._measured), (1.0,) * self.layout.replicas
        return PlannedCluster(shape, calibration.load.costs, speeds, **options).run(requests)

    def run(
        self, loads: Sequence[Sequence[PlannedRequest]], warm_up: Sequence[PlannedRequest]
    ) -> list[Outcome]:
        """Return what a server does with loads that have no prompts in common, one after another.

        It has served `warm_up` at once before, as servers have that are not measured in their first second.
        """
        with server_of(self._topology) as server, asyncio.Runner(loop_factory=new_event_loop) as runner:
            found = [
                runner.run(drive(server.url, load, late_seconds=LATE_SECONDS)) for load in (warm_up, *loads)
            ]
        count = self.layout.replicas
        return [summed_up(times, count, (0.0,) * count, 0.0, 0) for times in found[1:]]

    def _path(self, what: str) -> Path:
        return self._folder / f"{self._topology.stem}-{what}-{next(self._number)}.recording"


def drawn_requests(drawn: Drawn, count: int) -> list[PlannedRequest]:
    """Draw the first `count` requests of a part that nothing was fitted to."""
    seconds = 2.0 * count / drawn.rate
    while len(found := drawn.requests(Part.CONFIRMATION, seconds)) < count:
        seconds *= 2
    return found[:count]


def warm_up_of(drawn: Drawn, count: int) -> list[PlannedRequest]:
    """Return as many requests of another part, all at once."""
    return [replace(one, at=0.0) for one in drawn.requests(Part.SEARCH, 2.0 * count / drawn.rate)[:count]]
