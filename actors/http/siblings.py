"""The servers beside this one, which share its engine and maybe its port.

A client's next connection may lead to any of them. What it began at one and asks another for is looked for at all:
they are asked only for what is not here, so that the usual case costs nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import TypeVar

from pageant.actors.runtime import Actor
from pageant.actors.runtime.address import group_of
from pageant.protocol.errors import PageantError
from pageant.protocol.fronting import FollowResponse
from pageant.protocol.message import Message, Request
from pageant.protocol.supervision import GetDirectory

ANSWER_SECONDS = 5.0
SILENT_SECONDS = 3600.0  # of a response that is followed: as long as a queue may be
R = TypeVar("R", bound=Message)


class Siblings:
    """Asks them for a server."""

    def __init__(self, server: Actor) -> None:
        self._server = server

    async def ask(self, request: Request[R]) -> list[R]:
        """Ask all other servers, and return the answers of those that are up."""
        answers = await asyncio.gather(*(self._ask(name, request) for name in await self._names()))
        return [answer for answer in answers if answer is not None]

    async def follow(self, request: FollowResponse) -> AsyncGenerator[bytes, None]:
        """Yield the events of a response at whichever of them has it, as they come."""
        for name in await self._names():
            with contextlib.suppress(PageantError):  # it is going down, with all that it had
                async for item in self._server.stream(name, request, SILENT_SECONDS):
                    yield item.events.encode()

    async def _names(self) -> list[str]:
        """Return the names of those that are up."""
        server = self._server
        if group_of(server.name) == server.name:
            return []  # it is the only one
        directory = await server.ask("supervisor", GetDirectory(), timeout=ANSWER_SECONDS)
        return [
            entry.name
            for entry in directory.actors
            if entry.up and entry.name != server.name and group_of(entry.name) == group_of(server.name)
        ]

    async def _ask(self, name: str, request: Request[R]) -> R | None:
        try:
            return await self._server.ask(name, request, timeout=ANSWER_SECONDS)
        except PageantError:  # it is going down, with all that it had
            return None
