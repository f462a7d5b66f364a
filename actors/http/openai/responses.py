"""`/v1/responses`: a chat whose answers are items, kept for a while, and told in events of their own."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
from litestar import Response, delete, get, post
from litestar.params import FromPath, FromQuery

from pageant.actors.http.answers import Answers
from pageant.actors.http.chat.turns import Turn
from pageant.actors.http.chat_answers import begin
from pageant.actors.http.errors import Disconnected, NotFound
from pageant.actors.http.openai.chat_requests import as_chat
from pageant.actors.http.openai.event_log import EventLog
from pageant.actors.http.openai.input_items import (
    LIMIT,
    InputItems,
    Order,
    input_items,
    page_of,
)
from pageant.actors.http.openai.references import output_of, resolved
from pageant.actors.http.openai.response_requests import NAMES, ResponseRequest
from pageant.actors.http.openai.response_shapes import Deleted, ResponseObject, response_of
from pageant.actors.http.openai.response_store import ResponseStore, Stored
from pageant.actors.http.openai.response_writer import ResponseWriter
from pageant.actors.http.openapi import describe
from pageant.actors.http.service import Http, Service, respond
from pageant.actors.http.siblings import Siblings
from pageant.actors.http.streams import ByteStream, Teller, encode
from pageant.actors.http.tenants import caller
from pageant.protocol.errors import BadRequest
from pageant.protocol.fronting import FollowResponse, UsedResponse, UseResponse


def routes(service: Service, store: ResponseStore, siblings: Siblings) -> list[Any]:
    """Return the route handlers of `/v1/responses`."""
    stored = _StoredResponses(store, siblings)

    @post("/v1/responses", status_code=200, opt=describe(ResponseRequest, ResponseObject, streams=True))
    async def create_response(request: Http) -> Response[Any]:
        """Create a response."""
        return await _create(service, stored, request)

    @get("/v1/responses/{name:str}", opt=describe(answer=ResponseObject, streams=True))
    async def retrieve_response(
        name: FromPath[str],
        stream: FromQuery[bool | None] = None,
        starting_after: FromQuery[int | None] = None,
    ) -> Response[Any]:
        """A response that is stored; or the events of one that is streamed in the background, after a number."""
        found = await stored.use(name, "show")
        if not stream:
            return Response(found.response, media_type="application/json")
        if not found.has_events:
            reason = "stream is true; expected a response that was created with background and stream"
            raise BadRequest(reason, "stream")
        events = stored.follow(name, -1 if starting_after is None else starting_after)
        return ByteStream(events, service.pacemaker, {})

    @get("/v1/responses/{name:str}/input_items", opt=describe(answer=InputItems))
    async def list_input_items(
        name: FromPath[str],
        after: FromQuery[str | None] = None,
        limit: FromQuery[int] = LIMIT,
        order: FromQuery[Order] = "desc",
    ) -> InputItems:
        """The items that a stored response was made from, page by page; the latest first, unless `order` is asc."""
        found = await stored.use(name, "show")
        return page_of(msgspec.json.decode(found.items), after, limit, order)

    @post("/v1/responses/{name:str}/cancel", status_code=200, opt=describe(answer=ResponseObject))
    async def cancel_response(name: FromPath[str]) -> Response[Any]:
        """End a response that still runs in the background."""
        found = await stored.use(name, "cancel")
        if not found.background:
            raise BadRequest(f"{name} was not created with background; expected one that was", "response_id")
        return Response(found.response, media_type="application/json")

    @delete("/v1/responses/{name:str}", status_code=200, opt=describe(answer=Deleted))
    async def delete_response(name: FromPath[str]) -> Deleted:
        """Forget a response."""
        await stored.use(name, "delete")
        return Deleted(id=name)

    return [create_response, retrieve_response, list_input_items, cancel_response, delete_response]


@dataclass(frozen=True)
class _StoredResponses:
    """Responses that are stored here, or at a server beside this one. Callers see their own tenant's alone."""

    store: ResponseStore
    siblings: Siblings

    async def use(
        self, name: str, then: Literal["show", "cancel", "delete"], param: str | None = None
    ) -> UsedResponse:
        """Show, cancel or delete a stored response, and return it.

        Raises:
            NotFound: no server has it. Names `param`.
        """
        who = caller()
        asked = UseResponse(name=name, use=then, tenant=who.tenant, is_operator=who.is_operator)
        found = [self.store.use(asked)] if name in self.store else await self.siblings.ask(asked)
        for one in found:
            if one.response is not None:
                return one
        raise NotFound(f"no response {name!r:.200} is stored here", param, "response_not_found")

    def follow(self, name: str, after: int) -> AsyncGenerator[bytes, None]:
        """Iterate the events of a response that is streamed in the background, after event number `after`."""
        who = caller()
        asked = FollowResponse(name=name, after=after, tenant=who.tenant, is_operator=who.is_operator)
        return self.store.follow(asked) if name in self.store else self.siblings.follow(asked)

    async def turns_before(self, name: str | None) -> tuple[list[Turn], list[dict[str, Any]]]:
        """Return the turns and the items of the response that a new one continues; none without a name.

        Raises:
            BadRequest: the previous response still runs.
        """
        if name is None:
            return [], []
        earlier = await self.use(name, "show", "previous_response_id")
        if earlier.running:
            raise BadRequest("the previous response has not ended yet", "previous_response_id")
        items = [*msgspec.json.decode(earlier.items), *output_of(earlier)]
        return msgspec.json.decode(earlier.turns, type=list[Turn]), items


async def _create(service: Service, stored: _StoredResponses, request: Http) -> Response[Any]:
    """Begin a response: streamed, whole, or in the background."""
    taken = await service.take(request, ResponseRequest, "resp")
    asked = taken.asked
    before, items_before = await stored.turns_before(asked.previous_response_id)
    if not isinstance(asked.input, str):
        asked.input = await resolved(asked.input, lambda one: stored.use(one, "show", "input"))
    chat = as_chat(asked.chat_fields(before), NAMES)
    neutral = chat.chat(taken.served, service.rules, NAMES)
    answers = begin(service, [neutral], taken.served, taken.name)
    response = response_of(asked, service.new_id("resp"), taken.served.name, service.now())
    log = EventLog() if asked.background and asked.stream else None
    items = encode(input_items(asked.input, response.id, items_before)).decode()
    keep = Stored(response, [*before, *asked.turns()], answers, caller().tenant, log, items)
    writer = ResponseWriter(asked, answers, keep, stored.store, service.now)
    if asked.is_stored:
        stored.store.put(keep)
    if log is not None:
        service.engine.spawn(_log_events(service, answers, writer, log))
        return ByteStream(log.follow(-1), service.pacemaker, taken.headers)
    if asked.background:
        service.engine.spawn(_in_background(answers, writer))
        return Response(encode(response), headers=taken.headers, media_type="application/json")
    told_to = writer if asked.stream else None
    return await respond(service, request, answers, writer.whole, told_to, taken.headers)


async def _in_background(answers: Answers, writer: ResponseWriter) -> None:
    """Complete a response that no connection waits for: its outcome is in the store."""
    with contextlib.suppress(Exception):  # what went wrong is in the store too, and was logged
        await writer.whole(await answers.whole())


async def _log_events(service: Service, answers: Answers, writer: ResponseWriter, log: EventLog) -> None:
    """Complete a background response whose events may be followed."""
    try:
        with contextlib.suppress(Disconnected):
            await Teller(answers, writer, log.write, answers.leave, service.pacemaker).tell()
    finally:
        log.close()
