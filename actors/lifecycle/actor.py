"""The lifecycle actor: changes how models are served, while they are served.

It keeps nothing that must outlive it. What it was asked for stands in the options of the actors concerned, at the
supervisor, before those actors are told. So a death of any of them, or of this one, leaves every model as it was last
asked to be, or as it was before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any, TypeVar

from pageant.actors.lifecycle import adapters, weights
from pageant.actors.lifecycle.control import BLOCKS, SCHEDULER, ModelControl, ReplicaControl
from pageant.actors.lifecycle.on_demand import OnDemand
from pageant.actors.lifecycle.replicas import ElasticLifecycle
from pageant.actors.lifecycle.sleep import DRAIN_SECONDS, PARTS, fall_asleep, paused, still, wake
from pageant.actors.runtime import ActorOptions, receives
from pageant.actors.runtime.address import model_of
from pageant.protocol.errors import BadRequest, PageantError, StartupError, Unsupported
from pageant.protocol.fronting import ServedModel
from pageant.protocol.lifecycle import (
    AddAdapter,
    AwaitRest,
    GetModelState,
    LoadModel,
    ModelState,
    PauseMode,
    PauseModel,
    PauseScheduling,
    PrefixCacheReset,
    RemoveAdapter,
    ResetModelCache,
    ResetPrefixCache,
    ResumeModel,
    ResumeScheduling,
    SleepLevel,
    SleepModel,
    UpdateWeights,
    WakeModel,
)
from pageant.protocol.roles import LIFECYCLE

R = TypeVar("R")


class Lifecycle(ElasticLifecycle):
    """Serves operators."""

    role = LIFECYCLE

    class Options(ActorOptions, frozen=True, kw_only=True):
        """Options of the lifecycle actor.

        Attributes:
            served: the models. The topology fills it in.
            max_loaded_models: keep no more models awake; the others are loaded when requests come for them.
            min_loaded_seconds: a loaded model with open requests keeps its place for so long, while others wait.
            unload_level: how deep models sleep that gave way to others; see `SleepLevel`.
        """

        served: tuple[ServedModel, ...] = ()
        max_loaded_models: int | None = None
        min_loaded_seconds: float = 10.0
        unload_level: SleepLevel = 2

        def __post_init__(self) -> None:
            if self.max_loaded_models is not None and self.max_loaded_models < 1:
                raise ValueError(f"max_loaded_models is {self.max_loaded_models}; expected at least 1")
            if not 0 <= self.min_loaded_seconds < 1e6:
                raise ValueError(f"min_loaded_seconds is {self.min_loaded_seconds}; expected at least 0")

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self._models = {
            one.replica: ModelControl(self, one.replica, one.name)
            for one in options.served
            if not one.is_replicated
        }
        self._replicated = {
            one.replica: ReplicaControl(self, one.replica, one.name)
            for one in options.served
            if one.is_replicated
        }
        self._on_demand: OnDemand | None = None

    async def on_start(self) -> None:
        options = self.options
        if options.max_loaded_models is not None:
            self._on_demand = OnDemand(
                tuple(self._models.values()),
                most=options.max_loaded_models,
                level=options.unload_level,
                min_loaded_seconds=options.min_loaded_seconds,
                now=self.clock.now,
                teach=lambda model: self._teach(model.replica),
            )
        if self.incarnation > 1:
            self.spawn(self._reconcile())
            self.spawn(self._go_on_draining())

    async def _reconcile(self) -> None:
        """Go on with what a former life may not have come to do."""
        for model in self._models.values():
            await self._reconcile_model(model)
        for several in self._replicated.values():
            for one in await several.all():
                try:
                    await self._reconcile_model(one)
                except PageantError:
                    if await several.has(one):
                        raise

    async def _reconcile_model(self, model: ModelControl) -> None:
        async with model.lock:
            await self._tell_scheduler(model, await paused(model))
        for key, one in (await adapters.loaded(model)).added.items():
            if one.retired:
                self.spawn(adapters.forget_when_idle(model, key))

    # What operators ask. With replicas, each is done to all of them.

    @receives(concurrent=True)
    async def state(self, request: GetModelState) -> ModelState:
        """Return how a model is served."""
        return await self._state(await self._first(request.replica))

    @receives(concurrent=True)
    async def pause(self, request: PauseModel) -> ModelState:
        """Pause a model, and answer when nothing of it is computed any more."""

        async def begin(model: ModelControl) -> None:
            async with model.lock:
                await model.amend(SCHEDULER, paused=request.mode)
                await self._tell_scheduler(model, request.mode, release=request.clear_cache)

        async def complete(model: ModelControl) -> None:
            await self._rest(model)
            await self._settle(model, request.mode)
            if request.clear_cache:
                await model.ask(BLOCKS, ResetPrefixCache())

        async with self._joining(request.replica):
            await self._on_all(request.replica, begin)
        await self._on_all(request.replica, complete)
        return await self._state(await self._first(request.replica))

    @receives(concurrent=True)
    async def resume(self, request: ResumeModel) -> ModelState:
        """Let a paused model go on."""

        async def resume(model: ModelControl) -> None:
            async with model.lock:
                await model.amend(SCHEDULER, paused=None)
                await self._tell_scheduler(model, None)

        async with self._joining(request.replica):
            await self._on_all(request.replica, resume)
        return await self._state(await self._first(request.replica))

    @receives(concurrent=True)
    async def reset_cache(self, request: ResetModelCache) -> PrefixCacheReset:
        """Forget a model's cached prefixes."""

        async def forget(model: ModelControl) -> PrefixCacheReset:
            reset = ResetPrefixCache(below=request.below)
            if not request.reset_running:
                return await model.ask(BLOCKS, reset)
            async with model.changing, still(model, "keep", release=True):
                return await model.ask(BLOCKS, reset)

        found = await self._on_all(request.replica, forget)
        return PrefixCacheReset(
            blocks=sum(one.blocks for one in found), blocks_below=sum(one.blocks_below for one in found)
        )

    @receives(concurrent=True)
    async def add_adapter(self, request: AddAdapter) -> ModelState:
        """Load an adapter, which requests may have as soon as this is answered."""
        taken, added = await self._names_beside(request.replica), []

        async def add(model: ModelControl) -> None:
            async with model.changing:
                former = await adapters.add(model, request, taken)
                added.append(model)
                if former is not None:
                    self.spawn(adapters.forget_when_idle(model, former))

        async with self._changing(request.replica):
            try:
                await self._on_all(request.replica, add)
            except StartupError:
                if not request.in_place:  # no request has it yet
                    order = RemoveAdapter(replica=request.replica, name=request.name)
                    await asyncio.gather(*(adapters.remove(model, order) for model in added))
                raise
            return await self._teach(request.replica)

    @receives(concurrent=True)
    async def remove_adapter(self, request: RemoveAdapter) -> ModelState:
        """Forget an adapter."""

        async def remove(model: ModelControl) -> None:
            async with model.changing:
                await adapters.remove(model, request)

        async with self._changing(request.replica):
            await self._on_all(request.replica, remove)
            return await self._teach(request.replica)

    @receives(concurrent=True)
    async def sleep(self, request: SleepModel) -> ModelState:
        """Let a model give back its memory."""
        if (level := request.level) == 0:
            return await self.pause(PauseModel(replica=request.replica, mode=request.mode, clear_cache=False))

        async def sleep(model: ModelControl) -> None:
            async with model.changing, still(model, request.mode):
                await fall_asleep(model, level)

        async with self._changing(request.replica):
            await self._on_all(request.replica, sleep)
            return await self._teach(request.replica)

    @receives(concurrent=True)
    async def wake(self, request: WakeModel) -> ModelState:
        """Bring a model back."""
        wanted = frozenset(PARTS if request.parts is None else request.parts)
        sleeps = (await (await self._first(request.replica)).executor()).sleeping is not None

        async def wake_one(model: ModelControl) -> None:
            async with model.changing:
                await wake(model, wanted)

        alone = self._models.get(request.replica)
        if self._on_demand is not None and alone is not None and wanted & {*PARTS}:
            await self._on_demand.load(alone, wanted & {*PARTS})
        else:
            async with self._changing(request.replica):
                await self._on_all(request.replica, wake_one)
        if "scheduling" in wanted or (request.parts is None and not sleeps):
            await self.resume(ResumeModel(replica=request.replica))
        return await self._teach(request.replica)

    @receives(concurrent=True)
    async def load(self, request: LoadModel) -> ModelState:
        """Load a model that requests wait for; others give way, where there is no room."""
        model = self._model(request.replica)
        if self._on_demand is None:
            raise Unsupported("this topology loads no models on demand; see max_loaded_models")
        await self._on_demand.load(model)
        return await self._teach(request.replica)

    @receives(concurrent=True)
    async def update_weights(self, request: UpdateWeights) -> ModelState:
        """Go on with the weights of another checkpoint."""

        async def update(model: ModelControl) -> None:
            async with model.changing:
                plan = await model.executor()
                checked = await self.offload(weights.check, plan.options, request.folder, request.version)
                await weights.replace(model, checked, request.mode, beside=request.beside)

        async with self._changing(request.replica):
            await self._on_all(request.replica, update)
            return await self._teach(request.replica)

    # How it is done.

    def _model(self, replica: str) -> ModelControl:
        if replica in self._replicated:
            name = self._replicated[replica].name
            raise Unsupported(f"the model {name!r} has replicas, and is not loaded on demand")
        if replica not in self._models:
            known = ", ".join(repr(one.removesuffix("/")) for one in sorted(self._models | self._replicated))
            raise BadRequest(
                f"no model is called {replica.removesuffix('/')!r}; expected one of {known}", "model"
            )
        return self._models[replica]

    async def _first(self, replica: str) -> ModelControl:
        """Return a model, or the replica of it that tells how all of them are."""
        several = self._replicated.get(replica)
        return self._model(replica) if several is None else await several.first()

    async def _on_all(self, replica: str, change: Callable[[ModelControl], Awaitable[R]]) -> list[R]:
        """Change a model, or all replicas of it; see `ReplicaControl.on_all`."""
        several = self._replicated.get(replica)
        return [await change(self._model(replica))] if several is None else await several.on_all(change)

    def _changing(self, replica: str) -> AbstractAsyncContextManager[Any]:
        several = self._replicated.get(replica)
        return nullcontext() if several is None else several.changing

    def _joining(self, replica: str) -> AbstractAsyncContextManager[Any]:
        several = self._replicated.get(replica)
        return nullcontext() if several is None else several.joining

    async def _names_beside(self, replica: str) -> set[str]:
        """Return the names of all models, and of the other models' adapters."""
        names = {name for one in self.options.served for name in (one.name, *one.aliases)}
        for other in {*self._models, *self._replicated} - {replica}:
            names |= (await adapters.loaded(await self._first(other))).keys.keys()
        return names

    async def _state(self, model: ModelControl) -> ModelState:
        plan = await model.executor()
        there, sleeping = adapters.Loaded.of(plan.options), plan.sleeping
        return ModelState(
            replica=model_of(model.replica),
            paused=await paused(model),
            sleep_level=0 if sleeping is None else sleeping.level,
            woken=() if sleeping is None else sleeping.woken,
            weight_version=str(plan.options.get("weight_version", "")),
            folder=str(plan.options.get("model", "")),
            adapters=there.keys,
            adapter_owners=there.owners,
        )

    async def _teach(self, replica: str) -> ModelState:
        """Let every frontend know of a change before whoever asked for it does."""
        model = await self._first(replica)
        state = await self._state(model)
        await model.teach(state)
        return state

    async def _tell_scheduler(
        self, model: ModelControl, mode: PauseMode | None, *, release: bool = False
    ) -> None:
        if mode is None:
            await model.ask(SCHEDULER, ResumeScheduling())
        else:
            await model.ask(SCHEDULER, PauseScheduling(mode=mode, release=release))

    async def _rest(self, model: ModelControl) -> None:
        """Return when nothing of a model is computed any more, or when it was resumed meanwhile."""
        await model.ask(SCHEDULER, AwaitRest(), DRAIN_SECONDS)

    async def _settle(self, model: ModelControl, mode: PauseMode) -> None:
        """A pause is complete: from now on it is one that keeps what came since.

        A scheduler that began again would otherwise take what came since for what was open before. In the time between
        a pause and this it does: such a request is ended with `abort`, and computed with `wait`.
        """
        if mode == "keep":
            return
        async with model.lock:
            if await paused(model) == mode:
                await model.amend(SCHEDULER, paused="keep")
                await self._tell_scheduler(model, "keep")
