"""Actors of one model, as the lifecycle actor deals with them: asked, told, and their plans changed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from pageant.actors.runtime import Actor
from pageant.actors.runtime.address import SUPERVISOR, index_of, model_of, replica_of, role_of
from pageant.protocol.errors import (
    BadRequest,
    GivenUp,
    PageantError,
    PeerGone,
    RemoteError,
    StartupError,
    Unsupported,
)
from pageant.protocol.lifecycle import SLEEPING_CLASS, LearnModel, ModelState, SleepingOptions
from pageant.protocol.message import Request
from pageant.protocol.recording import ActorDescription, GetActor
from pageant.protocol.supervision import (
    ActorAmended,
    ActorEntry,
    AmendActor,
    Directory,
    Fact,
    GetDirectory,
    SwapActor,
    Swapped,
)

R = TypeVar("R")


@dataclass(frozen=True)
class ExecutorPlan:
    """Plan of an executor, awake or asleep: its class and options when it is awake; and how it sleeps, if it does."""

    cls: str
    options: dict[str, Any]
    sleeping: SleepingOptions | None = None


SWAP_SECONDS = 1800.0  # an executor loads its weights in that time
DEATHS_MAX = 3  # of processes that end while an executor begins there
ABSENCE_SECONDS = 0.2  # between looks for one that is being started again
ABSENCES_MAX = 300

EXECUTOR, SCHEDULER, BLOCKS = "executor/0", "scheduler", "blocks"
CHANGED_OPTIONS = ("model", "weight_version", "adapters", "added_adapters", "adapter_serial")
"""Options of an executor that operators change while it serves."""
FRONTENDS = ("frontend", "http")  # roles that are told how a model is served
ANSWER_SECONDS = 60.0  # for an actor that is being restarted to take a message
LEARN_SECONDS = 5.0


class ModelControl:
    """The actors of one model.

    Args:
        asker: the lifecycle actor.
        replica: what stands before the names of the model's actors.
        name: what the model is called outside.
    """

    def __init__(self, asker: Actor, replica: str, name: str) -> None:
        self._asker, self.replica, self.name = asker, replica, name
        self.lock = asyncio.Lock()
        """Held while the scheduler's plan is amended and it is told, so that both see changes in the same order."""
        self.changing = asyncio.Lock()
        """Held while the executor becomes another: it falls asleep, wakes, or has other adapters or weights."""

    async def ask(self, role: str, request: Request[R], seconds: float = ANSWER_SECONDS) -> R:
        """Ask an actor for something that may be carried out twice: its next life is asked if it dies with it."""
        return await self._asker.ask(f"{self.replica}{role}", request, timeout=seconds, again=True)

    async def describe(self, role: str) -> ActorDescription:
        """Return the class and the options of an actor's next life."""
        request = GetActor(name=f"{self.replica}{role}")
        return await self._asker.ask(SUPERVISOR, request, timeout=ANSWER_SECONDS)

    async def options(self, role: str) -> dict[str, Any]:
        """Return the options alone."""
        options: dict[str, Any] = json.loads((await self.describe(role)).options or "{}")
        return options

    async def amend(self, role: str, **options: Any) -> dict[str, Any]:
        """Lay options over those of an actor's next life. Returns all of them.

        Raises:
            Unsupported: the actor's class has no such option.
        """
        request = AmendActor(name=f"{self.replica}{role}", options=json.dumps(options))
        try:
            amended: ActorAmended = await self._asker.ask(SUPERVISOR, request, timeout=ANSWER_SECONDS)
        except RemoteError as error:
            if error.cause != "TopologyError":
                raise
            name = request.name
            raise Unsupported(f"this topology's {name} cannot be changed so: {error.detail}") from None
        found: dict[str, Any] = json.loads(amended.options)
        return found

    # The executor, which may sleep.

    async def executor(self) -> ExecutorPlan:
        """Return what the executor is, or will be when it wakes."""
        found = await self.describe(EXECUTOR)
        options: dict[str, Any] = json.loads(found.options or "{}")
        if found.cls != SLEEPING_CLASS:
            return ExecutorPlan(found.cls, options)
        sleeping = msgspec.convert(options, SleepingOptions)
        awake = json.loads(sleeping.awake_options) | (
            {"device": sleeping.device} if "device" in json.loads(sleeping.awake_options) else {}
        )
        return ExecutorPlan(sleeping.awake_class, awake, sleeping)

    async def amend_executor(self, **options: Any) -> None:
        """Lay options over those of the executor's next life, or of that in which it wakes."""
        plan = await self.executor()
        if plan.sleeping is None:
            await self.amend(EXECUTOR, **options)
        else:
            await self.amend(EXECUTOR, awake_options=json.dumps(plan.options | options))

    async def become(self, cls: str, options: Mapping[str, Any]) -> None:
        """Have the executor end, and begin as another. Done again if a process dies of something else meanwhile.

        Raises:
            StartupError: it cannot begin so; it goes on as it was.
        """
        swap = SwapActor(name=f"{self.replica}{EXECUTOR}", cls=cls, options=json.dumps(dict(options)))
        deaths = 0
        while True:
            try:
                swapped: Swapped = await self._asker.ask(SUPERVISOR, swap, timeout=SWAP_SECONDS)
            except PeerGone as error:  # it is being started again
                deaths += 1
                if isinstance(error, GivenUp) or deaths > ABSENCES_MAX:
                    raise
                await asyncio.sleep(ABSENCE_SECONDS)
                continue
            if not swapped.error:
                return
            deaths += 1
            if not swapped.died or deaths > DEATHS_MAX:
                raise StartupError(f"{swap.name} goes on as it was: {swapped.error}")

    async def entry(self, role: str) -> ActorEntry | None:
        """Return what the supervisor knows of an actor."""
        directory: Directory = await self._asker.ask(SUPERVISOR, GetDirectory(), timeout=ANSWER_SECONDS)
        entries = {entry.name: entry for entry in directory.actors}
        return entries.get(f"{self.replica}{role}")

    async def fact(self, role: str, name: str) -> Fact | None:
        """Return a fact of an actor that is up."""
        entry = await self.entry(role)
        return None if entry is None else entry.facts.get(name)

    async def teach(self, state: ModelState) -> None:
        """Tell every frontend how the model is served now. One that does not answer hears it from its actors."""
        directory: Directory = await self._asker.ask(SUPERVISOR, GetDirectory(), timeout=ANSWER_SECONDS)
        names = [entry.name for entry in directory.actors if entry.up and role_of(entry.name) in FRONTENDS]
        await asyncio.gather(*(self._teach(name, state) for name in names))

    async def _teach(self, name: str, state: ModelState) -> None:
        try:
            await self._asker.ask(name, LearnModel(state=state), timeout=LEARN_SECONDS)
        except PageantError:  # it is going down, or has no use for it
            return


class ReplicaControl:
    """The replicas of one model.

    Args:
        asker: the lifecycle actor.
        model: what stands before the prefixes of the replicas.
        name: what the model is called outside.
    """

    def __init__(self, asker: Actor, model: str, name: str) -> None:
        self._asker, self._model, self.name = asker, model, name
        self._there: dict[str, ModelControl] = {}
        self.changing = asyncio.Lock()
        """Held while executors become others, so that a new replica begins with what they become."""
        self.joining = asyncio.Lock()
        """Held while schedulers' plans are amended. A replica is added under both locks."""

    async def all(self) -> list[ModelControl]:
        """Return the actors of each replica that there is now, the first replica's first."""
        directory: Directory = await self._asker.ask(SUPERVISOR, GetDirectory(), timeout=ANSWER_SECONDS)
        prefixes = {replica_of(entry.name) for entry in directory.actors if role_of(entry.name) == SCHEDULER}
        numbers = {prefix: index_of(prefix) for prefix in prefixes if model_of(prefix) == self._model}
        own = sorted((number, prefix) for prefix, number in numbers.items() if number is not None)
        self._there = {
            prefix: self._there.get(prefix) or ModelControl(self._asker, prefix, self.name)
            for _, prefix in own
        }
        return [*self._there.values()]

    async def has(self, model: ModelControl) -> bool:
        """Tell whether a replica is still there."""
        return model.replica in {one.replica for one in await self.all()}

    async def present(self) -> list[ModelControl]:
        """Return the actors of each replica.

        Raises:
            PeerGone: there is no replica.
        """
        if found := await self.all():
            return found
        raise PeerGone(f"the model {self.name!r} has no replica now")

    async def changed_options(self) -> dict[str, str]:
        """Return the options, as JSON by role, that another replica takes over from those that there are.

        Raises:
            BadRequest: the model sleeps.
        """
        found = await self.all()
        if not found:
            return {}
        plan = await found[0].executor()
        if plan.sleeping is not None:
            raise BadRequest("the model sleeps, and takes no other replica until it is woken", "model")
        executor = {name: plan.options[name] for name in CHANGED_OPTIONS if name in plan.options}
        scheduler = await found[0].options(SCHEDULER)
        paused = {"paused": scheduler["paused"]} if "paused" in scheduler else {}
        return {EXECUTOR: json.dumps(executor), SCHEDULER: json.dumps(paused)}

    async def on_all(self, change: Callable[[ModelControl], Awaitable[R]]) -> list[R]:
        """Change every replica at once, and return what came of each that is still there.

        Raises:
            PageantError: as one replica said, where none has changed.
            StartupError: some have changed; names those that have not, and why.
        """
        models = await self.present()
        outcomes = await asyncio.gather(*(change(one) for one in models), return_exceptions=True)
        there = {one.replica for one in await self.all()}
        done, errors = [], {}
        for model, outcome in zip(models, outcomes, strict=True):
            if not isinstance(outcome, BaseException):
                done.append((model, outcome))
            elif not isinstance(outcome, PageantError):
                raise outcome
            elif model.replica in there:
                errors[model] = outcome
        if errors and not done:
            raise next(iter(errors.values()))
        if errors:
            failed = "; ".join(f"{_short(model)}: {error}" for model, error in errors.items())
            changed = ", ".join(_short(model) for model, _ in done)
            raise StartupError(f"some replicas have not changed. {failed}. Changed: {changed}")
        return [outcome for _, outcome in done]

    async def first(self) -> ModelControl:
        """Return the actors of a replica that tells how all of them are.

        Raises:
            PeerGone: there is no replica.
        """
        return (await self.present())[0]


def _short(model: ModelControl) -> str:
    return model.replica.removeprefix(model_of(model.replica)).rstrip("/")
