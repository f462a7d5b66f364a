"""The plans of actors: what their next lives will be, as the supervisor has them."""

from __future__ import annotations

import json
from typing import Any

from pageant.actors.runtime import Actor
from pageant.actors.runtime.address import SUPERVISOR
from pageant.protocol.errors import RemoteError, Unsupported
from pageant.protocol.recording import ActorDescription, GetActor
from pageant.protocol.supervision import ActorAmended, AmendActor

ANSWER_SECONDS = 30.0


class Plans:
    """Asks for plans, and has them changed, on behalf of an actor."""

    def __init__(self, asker: Actor) -> None:
        self._asker = asker

    async def describe(self, name: str) -> ActorDescription:
        """Return the class and the options of an actor's next life."""
        return await self._asker.ask(SUPERVISOR, GetActor(name=name), timeout=ANSWER_SECONDS)

    async def options(self, name: str) -> dict[str, Any]:
        """Return the options alone."""
        options: dict[str, Any] = json.loads((await self.describe(name)).options or "{}")
        return options

    async def amend(self, name: str, **options: Any) -> dict[str, Any]:
        """Lay options over those of an actor's next life. Returns all of them.

        Raises:
            Unsupported: the actor's class has no such option.
        """
        request = AmendActor(name=name, options=json.dumps(options))
        try:
            amended: ActorAmended = await self._asker.ask(SUPERVISOR, request, timeout=ANSWER_SECONDS)
        except RemoteError as error:
            if error.cause != "TopologyError":
                raise
            raise Unsupported(f"this topology's {name} cannot be changed so: {error.detail}") from None
        found: dict[str, Any] = json.loads(amended.options)
        return found
