"""Asks and streams: conversations that end with an answer, a failure or a deadline, wherever the other actor lives."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

from pageant.actors.runtime.clock import Clock
from pageant.actors.runtime.names import Names
from pageant.actors.runtime.replies import Answer, Items
from pageant.protocol.errors import DeadlineExceeded, PeerGone
from pageant.protocol.message import Message
from pageant.protocol.supervision import SWAPPED, ActorEntry

if TYPE_CHECKING:
    from pageant.actors.runtime.cell import Cell

SendRequest = Callable[
    ["Cell | ActorEntry", Message, "Cell | None", Answer | Items, float | None], Callable[[], None]
]
"""Sends an ask and returns the function that cancels it: see `Node`."""


class Asks:
    """The asks and streams of one node's actors. Belongs to the node's loop.

    Args:
        node: the node's name.
        send: sends one request. Its deadline is in seconds of `clock`; None for streams.
    """

    def __init__(self, node: str, clock: Clock, names: Names, send: SendRequest) -> None:
        self._node, self._clock, self._names, self._send = node, clock, names, send

    async def ask(
        self,
        address: str,
        request: Message,
        timeout: float,
        sender: Cell | None = None,
        *,
        again: bool = False,
        deaths_max: int | None = None,
    ) -> Any:
        """Send a request and wait for its reply, for `timeout` seconds at most. See `Actor.ask`."""
        deadline = self._clock.now() + timeout
        deaths = 0
        while True:
            place = await self._find(address, request, deadline, sender)
            try:
                return await self._ask_once(place, address, request, timeout, deadline, sender)
            except PeerGone:
                if not again or self._names.closed:
                    raise
                await self._outlive(place, deadline)
                entry = self._names.entries.get(place.name)
                deaths += entry is None or entry.reason != SWAPPED
                if deaths == deaths_max:
                    raise

    async def _outlive(self, place: Cell | ActorEntry, deadline: float) -> None:
        """Return when that life of an actor is known to be over, or at the deadline."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                while self._names.is_alive(place):
                    await self._names.change()

    async def _ask_once(
        self,
        place: Cell | ActorEntry,
        address: str,
        request: Message,
        timeout: float,
        deadline: float,
        sender: Cell | None,
    ) -> Any:
        answer = Answer(asyncio.get_running_loop())
        cancel = self._send(place, request, sender, answer, deadline)
        try:
            async with asyncio.timeout_at(deadline):
                return await answer.future
        except TimeoutError as error:
            # The handler itself ran into a deadline, which is relayed.
            if isinstance(error, DeadlineExceeded):
                raise
            cancel()
            raise DeadlineExceeded(
                f"{address} did not answer {type(request).__name__} within {timeout:g} s"
            ) from None
        except asyncio.CancelledError:
            cancel()
            raise

    async def stream(
        self, address: str, request: Message, timeout: float, sender: Cell | None = None, credit: int = 64
    ) -> AsyncIterator[Any]:
        """Iterate over the replies of a stream; `timeout` bounds the wait for each, in seconds. See
        `Actor.stream`.
        """
        deadline = self._clock.now() + timeout
        items = Items(asyncio.get_running_loop(), credit)
        place = await self._find(address, request, deadline, sender)
        cancel = self._send(place, request, sender, items, None)
        complete = False
        try:
            while True:
                try:
                    async with asyncio.timeout(timeout):
                        item = await items.next()
                except StopAsyncIteration:
                    complete = True
                    return
                yield item
        except TimeoutError as error:
            if isinstance(error, DeadlineExceeded):
                raise
            raise DeadlineExceeded(f"{address}: no item within {timeout:g} s") from None
        finally:
            items.close()
            if not complete:
                cancel()

    async def _find(
        self, address: str, request: Message, deadline: float, sender: Cell | None
    ) -> Cell | ActorEntry:
        """Return the actor that an ask goes to, waiting for one that is being restarted."""
        replica = sender.replica if sender is not None else ""
        while True:
            if self._names.closed:
                raise PeerGone(f"{address} cannot be asked: node {self._node} has stopped")
            place = self._names.one_of(address, replica)
            if place is not None and (isinstance(place, ActorEntry) or not place.closed):
                return place
            if not self._names.may_start(address, replica):
                self._names.raise_nowhere(address)
            try:
                async with asyncio.timeout_at(deadline):
                    await self._names.change()
            except TimeoutError:
                raise DeadlineExceeded(
                    f"{address} was down until the deadline of {type(request).__name__}"
                ) from None
