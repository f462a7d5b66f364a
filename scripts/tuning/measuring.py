"""Measurements of a tune: the costs of steps for each layout and quantisation, and how far n-gram drafts are right."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pageant
from pageant.actors.runtime.loop import new_event_loop
from pageant.protocol.errors import PageantError
from pageant.scripts.planning.calibration import Calibration, calibrate
from pageant.scripts.planning.requests import PlannedRequest
from pageant.scripts.tuning.space import Candidate, Layout, Space

DRAFT_TOKENS = 4
"""Drafts of a request in each step of the run that measures how many of them are right."""
DRAFTED_REQUESTS, DRAFTED_TOGETHER = 16, 4
"""Requests of that run, and how many are open at a time."""

Key = tuple[Layout, str | None]
"""Layout and quantisation, on which the costs of steps depend."""


@dataclass(frozen=True)
class Measurements:
    """Measurements of this machine.

    Attributes:
        calibrations: of layouts with their quantisations.
        failures: why other combinations do not run here.
        acceptance: share of n-gram drafts that are right, as long as those before are.
    """

    calibrations: Mapping[Key, Calibration]
    failures: Mapping[Key, str]
    acceptance: float = 0.0

    def of(self, candidate: Candidate) -> Calibration:
        """Return the calibration that has a candidate's costs."""
        return self.calibrations[candidate.layout, candidate.quantization]

    @property
    def vocabulary(self) -> int | None:
        """Return the number of the model's token ids, as the recordings say."""
        for one in self.calibrations.values():
            for actor in one.load.header.actors.values():
                size = json.loads(actor.options or "{}").get("vocab_size")
                if size is not None:
                    return int(size)
        return None


def measure(settings: Mapping[str, Any], space: Space, folder: Path) -> tuple[Measurements, Space]:
    """Run each layout with each quantisation for some seconds. Return the costs, and the space of those that run.

    Args:
        settings: that all candidates share, with the model.
        folder: where recordings are written.

    Raises:
        PageantError: the defaults do not run.
    """
    calibrations: dict[Key, Calibration] = {}
    failures: dict[Key, str] = {}
    default = (space.defaults.layout, space.defaults.quantization)
    for quantization in space.choices["quantization"]:
        for layout in space.choices["layout"]:
            if layout not in space.choices["layout"] or quantization not in space.choices["quantization"]:
                continue  # it failed with another
            say(f"measuring the times of steps: {_words(layout, quantization)}")
            own = {"replicas": layout.replicas, "threads": layout.threads, "quantization": quantization}
            try:
                path = folder / f"{layout}-{quantization}.recording"
                calibrations[layout, quantization] = calibrate(path, {**settings, **own})
            except PageantError as error:
                if (layout, quantization) == default:
                    raise
                failures[layout, quantization] = str(error)
                say(f"left out: {error}")
                space = space.without(layout, quantization)
    return Measurements(calibrations, failures), space


def measure_acceptance(settings: Mapping[str, Any], requests: Sequence[PlannedRequest]) -> float:
    """Serve some requests with n-gram drafts, and return the share that is right as long as those before are."""
    say("measuring how many n-gram drafts are right")
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        tokens_per_step = runner.run(_drafted(dict(settings), requests[:DRAFTED_REQUESTS]))
    return acceptance_of(tokens_per_step, DRAFT_TOKENS)


def tokens_per_step(acceptance: float, drafts: int) -> float:
    """Return the tokens that a step brings a request in the mean, with so many drafts."""
    return sum(acceptance**number for number in range(drafts + 1))


def acceptance_of(tokens: float, drafts: int) -> float:
    """Return the acceptance with which `tokens_per_step` are `tokens`, by halving."""
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        if tokens_per_step(middle, drafts) < tokens:
            low = middle
        else:
            high = middle
    return round(low, 6)


async def _drafted(settings: dict[str, Any], requests: Sequence[PlannedRequest]) -> float:
    """Return the tokens that a step brings a request in the mean."""
    model = settings.pop("model", None)
    drafter = {"method": "ngram", "tokens": DRAFT_TOKENS, "adaptive": False}
    free = asyncio.Semaphore(DRAFTED_TOGETHER)
    steps = tokens = 0

    async def serve(engine: pageant.Engine, request: PlannedRequest) -> None:
        nonlocal steps, tokens
        params = pageant.SamplingParams(temperature=0, max_tokens=request.output_tokens, ignore_eos=True)
        async with free:
            first = True
            async for output in engine.generate(request.prompt.tolist(), params):
                if not first:  # the first token is of a step that had no drafts
                    steps += 1
                    tokens += len(output.outputs[0].new_token_ids)
                first = False

    async with pageant.Engine(model, **{**settings, "speculation": drafter}) as engine:
        await asyncio.gather(*(serve(engine, request) for request in requests))
    return tokens / steps if steps else 1.0


def say(line: str) -> None:
    """Tell on standard error what goes on."""
    print(line, file=sys.stderr, flush=True)


def _words(layout: Layout, quantization: str | None) -> str:
    replicas, threads = f"replica{'s' * (layout.replicas > 1)}", f"thread{'s' * (layout.threads > 1)}"
    weights = "" if quantization is None else f", {quantization}"
    return f"{layout.replicas} {replicas} with {layout.threads} {threads}{weights}"
