"""Requests of which an actor may die: asked again of its next life, and alone when they have become suspects.

As with executors (`actors/scheduler/recovery.py`): who was there at two deaths is a suspect. What an actor then dies of
that has nothing else in its hands is what kills it; twice, since an ask has no progress by which to tell that it has
outlived a death that came from elsewhere. While there are suspects, nobody else asks.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import TypeVar

from pageant.actors.frontend.outputs import RequestFailed
from pageant.actors.runtime import Actor
from pageant.actors.runtime.address import SUPERVISOR
from pageant.protocol.errors import GivenUp, NoSuchActor, PeerGone
from pageant.protocol.message import Request
from pageant.protocol.supervision import DeathsCharged

DEATHS_SUSPECT = 2
DEATHS_ALONE_MAX = 2
ABSENCE_SECONDS = 0.01
"""Time until an actor is looked for again that is not in the topology any more."""

R = TypeVar("R")


class Trials:
    """The requests of one frontend to an address, with a guard against requests that kill the actor there.

    Args:
        address: a name, or a function that returns the one of several that is to be asked next.
        another: waits until there may be one to ask, where actors of the address come and go; None where they stay.
    """

    def __init__(
        self,
        asker: Actor,
        address: str | Callable[[], str],
        another: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._asker, self._another = asker, another
        self._find: Callable[[], str] = partial(str, address) if isinstance(address, str) else address
        self._beside = self._suspects = 0
        self._alone = asyncio.Lock()
        self._changed = asyncio.Event()

    async def ask(self, request: Request[R], timeout: float) -> R:
        """Return the answer within `timeout` seconds. Outlives the actor's deaths, unless this request causes
        them.

        Raises:
            RequestFailed: the actor dies of it.
            GivenUp: the actor will not come back.
        """
        async with self._beside_others():
            try:
                return await self._ask(request, timeout, DEATHS_SUSPECT)
            except GivenUp:
                raise
            except PeerGone:
                pass
        async with self._by_itself():
            try:
                return await self._ask(request, timeout, DEATHS_ALONE_MAX)
            except GivenUp:
                raise
            except PeerGone as error:
                deaths = DEATHS_SUSPECT + DEATHS_ALONE_MAX
                raise RequestFailed(
                    f"{self._find()} died {deaths} times with it, the last time with nothing else: {error}"
                ) from None

    async def _ask(self, request: Request[R], timeout: float, deaths_max: int) -> R:
        address, latest = self._find(), self._asker.clock.now() + timeout
        while True:
            try:
                return await self._asker.ask(
                    address, request, timeout=timeout, again=True, deaths_max=deaths_max
                )
            except (GivenUp, NoSuchActor) as error:
                address, gone = self._find(), address
                if address == gone:
                    if (
                        self._another is None
                        or isinstance(error, GivenUp)
                        or self._asker.clock.now() > latest
                    ):
                        raise
                    # Its replica was removed a moment ago, and that it was has not come here.
                    await asyncio.sleep(ABSENCE_SECONDS)
                    await self._another()
                    address = self._find()
            except PeerGone:
                self._asker.tell(SUPERVISOR, DeathsCharged(name=address, deaths=deaths_max))
                raise

    @asynccontextmanager
    async def _beside_others(self) -> AsyncIterator[None]:
        while self._suspects:
            await self._wait()
        self._beside += 1
        try:
            yield
        finally:
            self._beside -= 1
            self._changed.set()

    @asynccontextmanager
    async def _by_itself(self) -> AsyncIterator[None]:
        self._suspects += 1
        try:
            async with self._alone:
                while self._beside:
                    await self._wait()
                yield
        finally:
            self._suspects -= 1
            self._changed.set()

    async def _wait(self) -> None:
        self._changed.clear()
        await self._changed.wait()
