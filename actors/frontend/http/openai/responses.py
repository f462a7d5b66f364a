"""`/v1/responses`: a chat whose answers are items, kept for a while, and told in events of their own."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import msgspec
from litestar import Response, delete, get, post
from litestar.params import FromPath

from pageant.actors.frontend.http.answers import Answers, Piece
from pageant.actors.frontend.http.blocks import Block, Blocks, Step
from pageant.actors.frontend.http.errors import Disconnected, ErrorBody, NotFound, told
from pageant.actors.frontend.http.openai.chat import as_chat, begin
from pageant.actors.frontend.http.openai.conversation import Turn
from pageant.actors.frontend.http.openai.response_requests import NAMES, ResponseRequest
from pageant.actors.frontend.http.openai.response_shapes import (
    Deleted,
    ResponseObject,
    item,
    part,
    response_of,
    turns_of,
    usage_of,
)
from pageant.actors.frontend.http.openai.response_store import ResponseStore, Stored
from pageant.actors.frontend.http.openapi import describe
from pageant.actors.frontend.http.service import Http, Service, respond
from pageant.actors.frontend.http.siblings import Siblings
from pageant.actors.frontend.http.streams import encode
from pageant.actors.frontend.http.tenants import caller
from pageant.protocol.errors import BadRequest
from pageant.protocol.fronting import UsedResponse, UseResponse
from pageant.protocol.serving import Finished


class ResponseTelling:
    """A response, whole or event by event. It keeps the store up to date."""

    def __init__(
        self, response: ResponseObject, answers: Answers, keep: Stored, store: ResponseStore
    ) -> None:
        self._response, self._answers, self._keep, self._store = response, answers, keep, store
        self._blocks = Blocks()
        self._finished: Finished | None = None
        self._number = 0

    def first(self) -> Sequence[bytes]:
        """See `Telling`."""
        return [self._event(kind, response=self._response) for kind in ("created", "in_progress")]

    def next(self, piece: Piece) -> Sequence[bytes]:
        """See `Telling`."""
        self._finished = piece.finished
        return [event for step in self._blocks.feed(piece.said) for event in self._events(*step)]

    def last(self) -> Sequence[bytes]:
        """See `Telling`."""
        events = [event for step in self._blocks.end() for event in self._events(*step)]
        self._end()
        kind = "incomplete" if self._response.status != "completed" else "completed"
        return [*events, self._event(kind, response=self._response)]

    def failed(self, error: ErrorBody) -> Sequence[bytes]:
        """See `Telling`."""
        self.fail(error)
        return [self._event("failed", response=self._response)]

    async def whole(self, pieces: list[Piece]) -> ResponseObject:
        """All of it."""
        self._finished = pieces[0].finished
        for _ in (*self._blocks.feed(pieces[0].said), *self._blocks.end()):
            pass
        self._end()
        return self._response

    def fail(self, error: ErrorBody) -> None:
        """It has come to nothing."""
        response = self._response
        response.status = "failed"
        response.error = {"code": str(error.error.code or "server_error"), "message": error.error.message}
        self._settle()

    def closed(self) -> None:
        """Nobody will hear more of it. If it was not told to the end, it failed, or its client has gone."""
        if self._keep.answers is not None and self._answers.error is not None:
            if isinstance(self._answers.error, Disconnected):
                self._response.status = "cancelled"
                self._settle()
            else:
                self.fail(told(self._answers.error))

    def _end(self) -> None:
        response, finished = self._response, self._finished
        response.output = [item(block, response.id, whole=True) for block in self._blocks.all]
        response.usage = usage_of(self._answers)
        response.status = "completed"
        if finished is not None and finished.reason == "length":
            response.status = "incomplete"
            response.incomplete_details = {"reason": "max_output_tokens"}
        elif finished is not None and finished.reason == "abort":
            response.status = "cancelled"
        self._keep.turns += turns_of(self._blocks.all)
        self._settle()

    def _settle(self) -> None:
        self._keep.answers = None
        if self._response.store:
            self._store.put(self._keep)

    def _event(self, kind: str, **fields: Any) -> bytes:
        kind = f"response.{kind}"
        body = encode({"type": kind, "sequence_number": self._number, **fields})
        self._number += 1
        return b"event: " + kind.encode() + b"\ndata: " + body + b"\n\n"

    def _events(self, step: Step, block: Block, text: str) -> Iterator[bytes]:
        shown = item(block, self._response.id, whole=step == "ends")
        place: dict[str, Any] = {"output_index": block.place}
        within = {**place, "item_id": shown["id"]}
        if block.kind != "call":
            within["content_index"] = 0
        name = {"call": "function_call_arguments", "text": "output_text", "reasoning": "reasoning_text"}
        extra: dict[str, Any] = {"logprobs": []} if block.kind == "text" else {}
        if step == "begins":
            yield self._event("output_item.added", **place, item=shown)
            if block.kind != "call":
                yield self._event("content_part.added", **within, part=part(block, whole=False))
        elif step == "goes on":
            yield self._event(f"{name[block.kind]}.delta", **within, **extra, delta=text)
        else:
            if block.kind == "call":
                done = {"arguments": block.text, "name": block.name}
                yield self._event(f"{name[block.kind]}.done", **within, **done)
            else:
                yield self._event(f"{name[block.kind]}.done", **within, **extra, text=block.text)
                yield self._event("content_part.done", **within, part=part(block, whole=True))
            yield self._event("output_item.done", **place, item=shown)


def routes(service: Service, store: ResponseStore, siblings: Siblings) -> list[Any]:
    """The routes of this family."""

    async def use(
        name: str, then: Literal["show", "cancel", "delete"], param: str | None = None
    ) -> UsedResponse:
        """A stored response, here or at a server beside this one.

        Raises:
            NotFound: at none of them.
        """
        who = caller()
        asked = UseResponse(name=name, use=then, tenant=who.tenant, is_operator=who.is_operator)
        found = [store.use(asked)] if name in store else await siblings.ask(asked)
        for one in found:
            if one.response is not None:
                return one
        raise NotFound(f"no response {name!r:.200} is stored here", param, "response_not_found")

    @post("/v1/responses", status_code=200, opt=describe(ResponseRequest, ResponseObject, streams=True))
    async def create_response(request: Http) -> Response[Any]:
        """Create a response."""
        taken = await service.take(request, ResponseRequest, "resp")
        asked = taken.asked
        before: list[Turn] = []
        if asked.previous_response_id is not None:
            earlier = await use(asked.previous_response_id, "show", "previous_response_id")
            if earlier.running:
                raise BadRequest("the previous response has not ended yet", "previous_response_id")
            before = msgspec.json.decode(earlier.turns, type=list[Turn])
        if asked.background and asked.stream:
            raise BadRequest("stream is true; expected false with background", "stream")
        chat = as_chat(asked.chat_fields(before), NAMES)
        answers = begin(service, chat, taken.served, taken.name, NAMES)
        response = response_of(asked, service.new_id("resp"), taken.served.name, service.now())
        keep = Stored(response, [*before, *asked.turns()], answers, caller().tenant)
        telling = ResponseTelling(response, answers, keep, store)
        answers.on_close = telling.closed
        if asked.is_stored:
            store.put(keep)
        if asked.background:
            service.engine.spawn(_in_background(answers, telling))
            return Response(encode(response), headers=taken.headers, media_type="application/json")
        told_to = telling if asked.stream else None
        return await respond(service, request, answers, telling.whole, told_to, taken.headers)

    @get("/v1/responses/{name:str}", opt=describe(answer=ResponseObject))
    async def retrieve_response(name: FromPath[str]) -> Response[Any]:
        """A response that is stored."""
        return Response((await use(name, "show")).response, media_type="application/json")

    @post("/v1/responses/{name:str}/cancel", status_code=200, opt=describe(answer=ResponseObject))
    async def cancel_response(name: FromPath[str]) -> Response[Any]:
        """End a response that still runs."""
        return Response((await use(name, "cancel")).response, media_type="application/json")

    @delete("/v1/responses/{name:str}", status_code=200, opt=describe(answer=Deleted))
    async def delete_response(name: FromPath[str]) -> Deleted:
        """Forget a response."""
        await use(name, "delete")
        return Deleted(id=name)

    return [create_response, retrieve_response, cancel_response, delete_response]


async def _in_background(answers: Answers, telling: ResponseTelling) -> None:
    """Nobody waits for it: what it comes to is in the store."""
    with contextlib.suppress(Exception):  # what went wrong is in the store too, and was logged
        await telling.whole(await answers.whole())
