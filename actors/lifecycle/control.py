"""One model's actors, as the lifecycle actor deals with them: asked, told, and their plans changed."""

from __future__ import annotations

import asyncio
import json
from typing import Any, TypeVar

from pageant.actors.runtime import Actor
from pageant.actors.runtime.address import SUPERVISOR, role_of
from pageant.protocol.errors import PageantError, RemoteError, Unsupported
from pageant.protocol.lifecycle import LearnModel, ModelState
from pageant.protocol.message import Request
from pageant.protocol.recording import ActorDescription, GetActor
from pageant.protocol.supervision import ActorAmended, AmendActor, Directory, GetDirectory

R = TypeVar("R")

EXECUTOR, SCHEDULER, BLOCKS = "executor/0", "scheduler", "blocks"
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
        """Held while plans are amended and actors told, so that both see changes in the same order."""

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
