"""Responses that may be asked for again, or gone on from: the latest ones, as many as fit."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncGenerator
from dataclasses import dataclass

from pageant.actors.http.answers import Answers
from pageant.actors.http.chat.turns import Turn
from pageant.actors.http.openai.event_log import EventLog
from pageant.actors.http.openai.response_shapes import ResponseObject
from pageant.actors.http.streams import encode
from pageant.actors.http.tenants import Caller
from pageant.protocol.fronting import FollowResponse, UsedResponse, UseResponse

STORED_MAX = 4096
STORED_BYTES_MAX = 256 * 2**20


@dataclass
class Stored:
    """A response, the conversation up to its end, and its request while that runs.

    Attributes:
        owner: the tenant's name.
        log: its events, if it is streamed in the background.
        items: what it was made from (see `input_items`), as JSON.
    """

    response: ResponseObject
    turns: list[Turn]
    answers: Answers | None
    owner: str | None = None
    log: EventLog | None = None
    items: str = "[]"
    num_bytes: int = 0
    is_deleted: bool = False

    def cancel(self) -> None:
        """Ends it, if it still runs."""
        if self.answers is not None:
            self.answers.abort()
            self.response.status = "cancelled"


class ResponseStore:
    """Drops the oldest when there are too many, or they are too large. What still runs is kept anyway: requests
    have a bound of their own."""

    def __init__(self, most: int = STORED_MAX, bytes_max: int = STORED_BYTES_MAX) -> None:
        self._most, self._bytes_max = most, bytes_max
        self._stored: OrderedDict[str, Stored] = OrderedDict()
        self.num_bytes = 0

    def __len__(self) -> int:
        return len(self._stored)

    def __contains__(self, name: str) -> bool:
        return name in self._stored

    def put(self, stored: Stored) -> None:
        """Keeps a response; again when it has ended, with what it has become, unless it was deleted meanwhile."""
        if stored.is_deleted:
            return
        self._forget(stored.response.id)
        stored.num_bytes = len(encode([stored.response, stored.turns])) + len(stored.items)
        if stored.log is not None:
            stored.num_bytes += stored.log.num_bytes
        self._stored[stored.response.id] = stored
        self.num_bytes += stored.num_bytes
        ended = [name for name, one in self._stored.items() if one.answers is None]
        while ended and (len(self._stored) > self._most or self.num_bytes > self._bytes_max):
            self._forget(ended.pop(0))

    def get(self, name: str, who: Caller) -> Stored | None:
        """Return the response of an id, if it is stored and `who` may see it."""
        stored = self._stored.get(name)
        return stored if stored is not None and who.owns(stored.owner) else None

    def _delete(self, stored: Stored) -> None:
        """Forget a response, for good."""
        stored.is_deleted = True
        if stored.answers is not None:
            stored.answers.abort()
        self._forget(stored.response.id)

    def use(self, asked: UseResponse) -> UsedResponse:
        """Do what a client, or a server beside this one, asks; the answer is empty where the client has no such one."""
        stored = self.get(asked.name, Caller(asked.tenant, asked.is_operator))
        if stored is None:
            return UsedResponse()
        if asked.use == "cancel" and stored.response.background:
            stored.cancel()
        elif asked.use == "delete":
            self._delete(stored)
        return UsedResponse(
            response=encode(stored.response).decode(),
            turns=encode(stored.turns).decode(),
            running=stored.answers is not None,
            background=stored.response.background,
            has_events=stored.log is not None,
            items=stored.items,
        )

    async def follow(self, asked: FollowResponse) -> AsyncGenerator[bytes, None]:
        """Yield a response's events, as they come; none where the client has no such response, or it has no events."""
        stored = self.get(asked.name, Caller(asked.tenant, asked.is_operator))
        if stored is not None and stored.log is not None:
            async for events in stored.log.follow(asked.after):
                yield events

    def _forget(self, name: str) -> None:
        stored = self._stored.pop(name, None)
        if stored is not None:
            self.num_bytes -= stored.num_bytes
