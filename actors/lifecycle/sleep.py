"""A model sleeps and wakes: its executor gives way to one that computes nothing, and comes back.

Before, the scheduler stands still, so that no step is lost; what it is told for that is in no plan, since it is over as
soon as the executor is another.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import get_args

import msgspec

from pageant.actors.lifecycle.control import EXECUTOR, SCHEDULER, ModelControl
from pageant.protocol.lifecycle import (
    SLEEPING_CLASS,
    AwaitRest,
    Part,
    PauseMode,
    PauseScheduling,
    ResumeScheduling,
    SleepingOptions,
    SleepLevel,
)
from pageant.protocol.stepping import MAX_MODEL_LEN

DRAIN_SECONDS = 7 * 86_400.0  # for requests to end by themselves; whoever asked may give up sooner
PARTS: tuple[Part, ...] = get_args(Part)


@asynccontextmanager
async def still(model: ModelControl, mode: PauseMode, *, release: bool = False) -> AsyncIterator[None]:
    """Keep a model's step loop still within the context; afterwards it goes on, unless it is paused.

    Args:
        release: running requests give up their memory, too.
    """
    try:
        await _tell(model, mode, release=release)
        while not (await model.ask(SCHEDULER, AwaitRest(), DRAIN_SECONDS)).done:
            await _tell(
                model, mode, release=release
            )  # the scheduler is another by now, or somebody let it go on
        yield
    finally:
        await _tell(model, await paused(model))


async def paused(model: ModelControl) -> PauseMode | None:
    """The mode in which somebody paused a model."""
    found: PauseMode | None = (await model.options(SCHEDULER)).get("paused")
    return found


async def _tell(model: ModelControl, mode: PauseMode | None, *, release: bool = False) -> None:
    async with model.lock:
        if mode is None:
            await model.ask(SCHEDULER, ResumeScheduling())
        else:
            await model.ask(SCHEDULER, PauseScheduling(mode=mode, release=release))


async def fall_asleep(model: ModelControl, level: SleepLevel) -> None:
    """Have the executor give way. The scheduler stands still. One that sleeps goes on, on that level."""
    plan = await model.executor()
    longest = await model.fact(EXECUTOR, MAX_MODEL_LEN)
    options = SleepingOptions(
        awake_class=plan.cls,
        awake_options=json.dumps(plan.options),
        level=level,
        device=plan.options.get("device", "cpu"),
        known_max_model_len=longest if isinstance(longest, int) else None,
    )
    if plan.sleeping == options:
        return
    await model.become(SLEEPING_CLASS, msgspec.to_builtins(options))


async def wake(model: ModelControl, parts: frozenset[str]) -> None:
    """Bring parts of a sleeping model back. With all of them it computes."""
    plan = await model.executor()
    if plan.sleeping is None:
        return
    woken = parts | {*plan.sleeping.woken}
    if woken >= {*PARTS}:
        await model.become(plan.cls, plan.options)
    elif woken != {*plan.sleeping.woken}:
        await model.become(SLEEPING_CLASS, {"woken": sorted(woken & {*PARTS})})
