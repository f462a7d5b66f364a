"""The lifecycle actor: changes how models are served, while they are served.

It keeps nothing that must outlive it. What it was asked for stands in the options of the actors concerned, at the
supervisor, before those actors are told: a death of any of them, or of this one, leaves every model as it was last
asked to be, or as it was before.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Any

from pageant.actors.lifecycle.plans import Plans
from pageant.actors.runtime import Actor, ActorOptions, receives
from pageant.protocol.errors import BadRequest
from pageant.protocol.fronting import ServedModel
from pageant.protocol.lifecycle import (
    AwaitRest,
    GetModelState,
    ModelState,
    PauseMode,
    PauseModel,
    PauseScheduling,
    PrefixCacheReset,
    ResetModelCache,
    ResetPrefixCache,
    ResumeModel,
    ResumeScheduling,
)
from pageant.protocol.roles import LIFECYCLE

ANSWER_SECONDS = 60.0  # for an actor that is being restarted to take a message
DRAIN_SECONDS = 7 * 86_400.0  # for requests to end by themselves; whoever asked may give up sooner


class Lifecycle(Actor):
    """Serves operators."""

    role = LIFECYCLE

    class Options(ActorOptions, frozen=True, kw_only=True):
        """Options of the lifecycle actor.

        Attributes:
            served: the models. The topology fills it in.
        """

        served: tuple[ServedModel, ...] = ()

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self._plans = Plans(self)
        self._replicas = frozenset(model.replica for model in options.served)
        # One change at a time is told to a model's actors, in the order in which their plans were amended.
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def on_start(self) -> None:
        if self.incarnation > 1:
            self.spawn(self._reconcile())

    async def _reconcile(self) -> None:
        """Tell schedulers again what a former life may not have come to tell them."""
        for replica in sorted(self._replicas):
            async with self._locks[replica]:
                await self._tell_scheduler(replica, await self._paused(replica))

    # What operators ask.

    @receives(concurrent=True)
    async def state(self, request: GetModelState) -> ModelState:
        """How a model is served."""
        return await self._state(self._known(request.replica))

    @receives(concurrent=True)
    async def pause(self, request: PauseModel) -> ModelState:
        """Pause a model, and answer when nothing of it is computed any more."""
        replica = self._known(request.replica)
        async with self._locks[replica]:
            await self._plans.amend(f"{replica}scheduler", paused=request.mode)
            await self._tell_scheduler(replica, request.mode, release=request.clear_cache)
        await self._rest(replica)
        await self._settle(replica, request.mode)
        if request.clear_cache:
            await self._reset(replica, below=True)
        return await self._state(replica)

    @receives(concurrent=True)
    async def resume(self, request: ResumeModel) -> ModelState:
        """Let a paused model go on."""
        replica = self._known(request.replica)
        async with self._locks[replica]:
            await self._plans.amend(f"{replica}scheduler", paused=None)
            await self._tell_scheduler(replica, None)
        return await self._state(replica)

    @receives(concurrent=True)
    async def reset_cache(self, request: ResetModelCache) -> PrefixCacheReset:
        """Forget a model's cached prefixes."""
        replica = self._known(request.replica)
        if not request.reset_running:
            return await self._reset(replica, below=request.below)
        async with self._locks[replica]:
            paused = await self._paused(replica)
            await self._tell_scheduler(replica, "keep", release=True)
            try:
                await self._rest(replica)
                return await self._reset(replica, below=request.below)
            finally:
                await self._tell_scheduler(replica, paused)

    # How it is done.

    def _known(self, replica: str) -> str:
        if replica not in self._replicas:
            known = ", ".join(repr(one.removesuffix("/")) for one in sorted(self._replicas))
            raise BadRequest(
                f"no model is called {replica.removesuffix('/')!r}; expected one of {known}", "model"
            )
        return replica

    async def _state(self, replica: str) -> ModelState:
        return ModelState(replica=replica, paused=await self._paused(replica))

    async def _paused(self, replica: str) -> PauseMode | None:
        options = await self._plans.options(f"{replica}scheduler")
        paused: PauseMode | None = options.get("paused")  # checked by the scheduler's options
        return paused

    async def _tell_scheduler(self, replica: str, mode: PauseMode | None, *, release: bool = False) -> None:
        request = ResumeScheduling() if mode is None else PauseScheduling(mode=mode, release=release)
        await self._ask_its(replica, "scheduler", request)

    async def _settle(self, replica: str, mode: PauseMode) -> None:
        """A pause is complete: from now on it is one that keeps what came since.

        A scheduler that began again would otherwise take what came since for what was open before. In the time between
        a pause and this it does: such a request is ended with `abort`, and computed with `wait`.
        """
        if mode == "keep":
            return
        async with self._locks[replica]:
            if await self._paused(replica) == mode:
                await self._plans.amend(f"{replica}scheduler", paused="keep")
                await self._tell_scheduler(replica, "keep")

    async def _rest(self, replica: str) -> None:
        """Return when nothing of a model is computed any more, or when it was resumed meanwhile."""
        await self._ask_its(replica, "scheduler", AwaitRest(), DRAIN_SECONDS)

    async def _reset(self, replica: str, *, below: bool) -> PrefixCacheReset:
        answer: PrefixCacheReset = await self._ask_its(replica, "blocks", ResetPrefixCache(below=below))
        return answer

    async def _ask_its(self, replica: str, role: str, request: Any, seconds: float = ANSWER_SECONDS) -> Any:
        """Ask an actor of a model; each of these requests may be carried out twice."""
        return await self.ask(f"{replica}{role}", request, timeout=seconds, again=True)
