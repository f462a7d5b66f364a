"""Sinks that carry a request's outputs from the node's loop to the loop of whoever asked."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable

from pageant.actors.client.outputs import Completion, RequestOutput
from pageant.actors.client.session import Session
from pageant.actors.frontend.outputs import Arrived
from pageant.protocol.errors import PageantError


class LoopHub:
    """Brings outputs from the node's loop to a user's: one wake-up per step."""

    def __init__(self, loop: asyncio.AbstractEventLoop, session: Session) -> None:
        self._loop, self._session = loop, session
        self._pending: list[tuple[LoopSink, _Event]] = []

    def add(self, sink: LoopSink, event: _Event) -> None:
        """Keeps an output until the step is complete. On the node's loop."""
        self._pending.append((sink, event))

    def call(self, function: Callable[[], None]) -> None:
        """Calls a function on the user's loop, from any thread."""
        with contextlib.suppress(RuntimeError):  # that loop is closed: nobody is left to hear
            self._loop.call_soon_threadsafe(function)

    def flush(self) -> None:
        """Hands over everything of this step. On the node's loop."""
        pending, self._pending = self._pending, []
        try:
            self._loop.call_soon_threadsafe(_spread, pending)
        except RuntimeError:  # the user's loop is closed: nobody is left to hear
            self._session.abort([sink.completion.request_id for sink, _ in pending])


_Event = Arrived | tuple[str | None, list[int]] | PageantError


def _spread(events: list[tuple[LoopSink, _Event]]) -> None:
    for sink, event in events:
        sink.take(event)


class LoopSink:
    """Queue of one request's outputs: given on the node's loop, awaited on the user's."""

    def __init__(self, hub: LoopHub, completion: Completion) -> None:
        self.hub = hub
        self.completion = completion
        self._events: deque[_Event] = deque()
        self._waiter: asyncio.Future[None] | None = None

    # On the node's loop.

    def accepted(self, prompt: str | None, prompt_token_ids: list[int]) -> None:
        self.hub.add(self, (prompt, prompt_token_ids))

    def output(self, arrived: Arrived) -> None:
        self.hub.add(self, arrived)

    def failed(self, error: PageantError) -> None:
        self.hub.add(self, error)

    # On the user's loop.

    def take(self, event: _Event) -> None:
        """An event has come over."""
        self._events.append(event)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def end(self) -> None:
        """The request was aborted: nothing more of it comes."""
        for event in self.completion.endings("abort"):
            self.take(event)

    async def next(self) -> RequestOutput:
        """The next output, everything that has come by now taken together."""
        while True:
            while not self._events:
                self._waiter = asyncio.get_running_loop().create_future()
                await self._waiter
            fresh = False
            while self._events:
                event = self._events.popleft()
                if isinstance(event, PageantError):
                    raise event
                if isinstance(event, Arrived):
                    self.completion.add(event)
                    fresh = True
                else:
                    self.completion.prompt, self.completion.prompt_token_ids = event
            if fresh and (output := self.completion.output()) is not None:
                return output
