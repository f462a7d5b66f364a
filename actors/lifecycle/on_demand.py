"""Models of one server that are loaded on demand: at most so many are awake, and the others take turns.

The rule. Models that are wanted are loaded one after another, in the order in which they were first asked for. To make
room, the idle model that was used least recently is unloaded. While none is idle, the model that was loaded first keeps
its place for `min_loaded_seconds`. Then its open requests are computed to their ends, requests that come later wait
for its next turn, and it is unloaded. So no model starves, however busy another is, and nobody waits for himself.

A model that an operator paused may hold its requests for ever, so it is unloaded only while it is idle.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from pageant.actors.lifecycle.control import EXECUTOR, SCHEDULER, ModelControl
from pageant.actors.lifecycle.sleep import PARTS, fall_asleep, paused, still, wake
from pageant.protocol.errors import GivenUp
from pageant.protocol.lifecycle import PauseMode, PauseScheduling, SleepLevel
from pageant.protocol.scheduling import GetSchedulerStatistics

log = logging.getLogger("pageant.lifecycle")

LOOK_SECONDS = 0.1
"""Time between two looks for a model that became idle, or whose turn is over."""


class OnDemand:
    """Loads models when they are wanted, and unloads others for them.

    Args:
        models: all of the topology's.
        most: how many may be awake.
        level: how deep the others sleep.
        min_loaded_seconds: a model with open requests keeps its place for so long.
        now: a clock, in seconds.
        teach: tells frontends how a model is served now.
    """

    def __init__(
        self,
        models: Sequence[ModelControl],
        *,
        most: int,
        level: SleepLevel,
        min_loaded_seconds: float,
        now: Callable[[], float],
        teach: Callable[[ModelControl], Awaitable[object]],
    ) -> None:
        self._models, self._most, self._level = models, most, level
        self._min_loaded_seconds, self._now, self._teach = min_loaded_seconds, now, teach
        self._turn = asyncio.Lock()
        """Held by the model that is being loaded. Those that wait for it get it in the order in which they came."""
        self._loaded_at: dict[str, float] = {}
        """By replica, when a model was loaded; missing for one that a former life of this actor loaded."""

    async def load(self, model: ModelControl, parts: frozenset[str] = frozenset(PARTS)) -> None:
        """Return when a model is awake; unload others first, where there is no room for it.

        Raises:
            StartupError: it cannot be loaded; it sleeps on.
        """
        async with self._turn:
            if (await model.executor()).sleeping is None:
                return
            await self._make_room(model)
            async with model.changing:
                await wake(model, parts)
            self._loaded_at[model.replica] = self._now()
            log.info("%s: loaded on demand", model.name)

    async def _make_room(self, wanted: ModelControl) -> None:
        while True:
            others = [one for one in self._models if one is not wanted and await _is_loaded(one)]
            if len(others) < self._most:
                return
            if await self._unload_idle(others):
                continue
            due = await self._due(others)
            if due is None:
                await asyncio.sleep(LOOK_SECONDS)
            else:
                await self._unload(due, "wait")

    async def _unload_idle(self, loaded: Sequence[ModelControl]) -> bool:
        """Unload the idle model that was used least recently. Return whether there was one."""
        idle: list[tuple[float, ModelControl]] = []
        for one in loaded:
            try:
                use = await one.ask(SCHEDULER, GetSchedulerStatistics())
            except GivenUp:  # nobody uses it any more, and nobody plans for it
                async with one.changing:
                    await fall_asleep(one, self._level)
                await self._unloaded(one)
                return True
            if not use.num_running + use.num_waiting:
                idle.append((use.idle_seconds, one))
        for _, one in sorted(idle, key=lambda entry: entry[0], reverse=True):
            # A request that comes from here on waits in the scheduler's queue, and wants the model again.
            if (await one.ask(SCHEDULER, PauseScheduling(mode="keep", if_idle=True))).done:
                await self._unload(one, "keep")
                return True
        return False

    async def _due(self, loaded: Sequence[ModelControl]) -> ModelControl | None:
        """Return the model that was loaded first, if its time is over, and it can come to an end."""
        for one in sorted(loaded, key=lambda one: self._loaded_at.get(one.replica, 0.0)):
            since = self._now() - self._loaded_at.get(one.replica, float("-inf"))
            if since >= self._min_loaded_seconds and await paused(one) is None:
                return one
        return None

    async def _unload(self, model: ModelControl, mode: PauseMode) -> None:
        """Have a model sleep. With `wait`, requests that are open end first."""
        async with model.changing, still(model, mode):
            await fall_asleep(model, self._level)
        await self._unloaded(model)

    async def _unloaded(self, model: ModelControl) -> None:
        self._loaded_at.pop(model.replica, None)
        await self._teach(model)
        log.info("%s: unloaded for another model", model.name)


async def _is_loaded(model: ModelControl) -> bool:
    """Return whether a model's weights are in memory to be computed with."""
    sleeping, entry = (await model.executor()).sleeping, await model.entry(EXECUTOR)
    is_gone = entry is not None and entry.final
    return not is_gone and (sleeping is None or "weights" in sleeping.woken)
