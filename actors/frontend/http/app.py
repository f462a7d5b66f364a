"""The routes: OpenAI's API as a Litestar application over a server actor."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

from litestar import Litestar, Request, Response, get, post
from litestar.connection import ASGIConnection
from litestar.exceptions import NotAuthorizedException
from litestar.handlers.base import BaseRouteHandler
from litestar.openapi.config import OpenAPIConfig
from litestar.params import FromPath
from litestar.response import Stream

from pageant.actors.frontend.http import answers as running
from pageant.actors.frontend.http import requests, responses
from pageant.actors.frontend.http.answers import Answers, Piece
from pageant.actors.frontend.http.errors import NotFound, respond
from pageant.actors.frontend.http.metrics import exposition
from pageant.actors.frontend.http.responses import (
    ChatChoice,
    ChunkChoice,
    Completion,
    Delta,
    TextChoice,
    Usage,
)
from pageant.actors.runtime.version import VERSION
from pageant.protocol.errors import BadRequest
from pageant.protocol.serving import Finished

if TYPE_CHECKING:
    from pageant.actors.frontend.http.server import HttpServer

R = TypeVar("R", bound=requests.Generation)
T = TypeVar("T")
Http = Request[Any, Any, Any]

PASSED_OVER = "x-pageant-fields-without-effect"
OPEN_PATHS = {"/health", "/ready"}  # without a key


class Disconnected(Exception):
    """The client went away before its answer came."""


def make_app(server: HttpServer) -> Litestar:
    """The application of a server."""

    @post("/v1/completions", status_code=200)
    async def completions(request: Http) -> Response[Any]:
        """Complete one or several prompts."""
        asked, headers = await _read(server, request, requests.CompletionRequest)
        prompts, name = asked.prompts(), server.new_id("cmpl")
        going = server.complete(prompts, asked.sampling_params(), name)
        shown = [prompt if asked.echo and isinstance(prompt, str) else "" for prompt in prompts]

        def body(choices: list[TextChoice], usage: Usage | None = None) -> Completion:
            return Completion(
                id=name, created=server.now(), model=server.model_name, choices=choices, usage=usage
            )

        def chunk(index: int, piece: Piece, first: bool) -> Completion:
            text = shown[index] + piece.text if first else piece.text
            return body([TextChoice(index=index, text=text, **_ending(piece.finished))])

        if asked.stream:
            return await _stream(going, [], chunk, _usage(asked, lambda usage: body([], usage)), headers)
        pieces = await _unless_gone(request, going.whole())
        choices = [
            TextChoice(index=index, text=shown[index] + piece.text, **_ending(piece.finished))
            for index, piece in enumerate(pieces)
        ]
        return Response(body(choices, going.usage()), headers=headers, media_type="application/json")

    @post("/v1/chat/completions", status_code=200)
    async def chat(request: Http) -> Response[Any]:
        """Answer a conversation."""
        asked, headers = await _read(server, request, requests.ChatRequest)
        name = server.new_id("chatcmpl")
        going = server.chat(asked.conversation(), asked.sampling_params(), name)

        def body(choices: list[ChunkChoice], usage: Usage | None = None) -> responses.ChatChunk:
            return responses.ChatChunk(
                id=name, created=server.now(), model=server.model_name, choices=choices, usage=usage
            )

        def chunk(index: int, piece: Piece, _: bool) -> responses.ChatChunk:
            return body(
                [ChunkChoice(index=index, delta=Delta(content=piece.text), **_ending(piece.finished))]
            )

        if asked.stream:
            roles = [ChunkChoice(index=0, delta=Delta(role="assistant", content=""))]
            last = _usage(asked, lambda usage: body([], usage))
            return await _stream(going, [body(roles)], chunk, last, headers)
        pieces = await _unless_gone(request, going.whole())
        choices = [
            ChatChoice(index=index, message=responses.Message(content=piece.text), **_ending(piece.finished))
            for index, piece in enumerate(pieces)
        ]
        whole = responses.ChatCompletion(
            id=name, created=server.now(), model=server.model_name, choices=choices, usage=going.usage()
        )
        return Response(whole, headers=headers, media_type="application/json")

    @get("/v1/models")
    async def models() -> dict[str, Any]:
        """The models that are served."""
        return {"object": "list", "data": [server.model()]}

    @get("/v1/models/{name:path}")
    async def model(name: FromPath[str]) -> responses.Model:
        """One of them."""
        _check_model(server, name.lstrip("/"))
        return server.model()

    @get("/health")
    async def health() -> Response[None]:
        """200 if a token has just been computed for this question; 503 if that takes too long."""
        return Response(None, status_code=200 if await server.healthy() else 503)

    @get("/ready")
    async def ready() -> Response[None]:
        """200 while requests are taken."""
        return Response(None, status_code=200 if server.is_ready else 503)

    @get("/version")
    async def version() -> dict[str, str]:
        """This software's."""
        return {"version": VERSION}

    @get("/metrics", media_type="text/plain; version=0.0.4")
    async def metrics() -> str:
        """Counters and gauges, as Prometheus reads them."""
        return exposition(await server.statistics())

    return Litestar(
        route_handlers=[completions, chat, models, model, health, ready, version, metrics],
        exception_handlers={Exception: respond, Disconnected: _nobody_there},
        guards=[_key_guard(server.options.api_keys)],
        openapi_config=OpenAPIConfig(title="Pageant", version=VERSION),
        request_max_body_size=server.max_body_bytes,
        logging_config=None,
    )


def _key_guard(
    keys: tuple[str, ...],
) -> Callable[[ASGIConnection[Any, Any, Any, Any], BaseRouteHandler], None]:
    """Refuses requests without one of the keys; every key is compared, in constant time."""
    known = [f"Bearer {key}".encode() for key in keys]

    def guard(connection: ASGIConnection[Any, Any, Any, Any], _: BaseRouteHandler) -> None:
        if not known or connection.url.path in OPEN_PATHS:
            return
        given = connection.headers.get("authorization", "").encode()
        if not sum(hmac.compare_digest(given, key) for key in known):
            raise NotAuthorizedException("no valid API key was given; expected 'Authorization: Bearer KEY'")

    return guard


async def _read(server: HttpServer, request: Http, shape: type[R]) -> tuple[R, dict[str, str]]:
    """The request, and the headers that its answer will have."""
    asked, passed_over = requests.read(await request.body(), shape)
    _check_model(server, asked.model)
    if asked.n not in (None, 1):
        raise BadRequest(f"n is {asked.n}; only 1 is served so far", "n")
    if not passed_over:
        return asked, {}
    server.count_passed_over(passed_over)
    named = ", ".join(sorted(passed_over))
    if server.options.strict_fields:
        raise BadRequest(f"these fields have no effect here: {named}", passed_over[0])
    return asked, {PASSED_OVER: named.encode("ascii", "backslashreplace").decode()[:1024]}


def _check_model(server: HttpServer, name: str | None) -> None:
    if name is not None and name != server.model_name:
        raise NotFound(
            f"no model {name!r:.200} is served; expected {server.model_name!r}", "model", "model_not_found"
        )


def _ending(finished: Finished | None) -> dict[str, Any]:
    if finished is None:
        return {}
    return {"finish_reason": finished.reason, "stop_reason": finished.stop_reason}


def _usage(asked: requests.Generation, make: Callable[[Usage], Any]) -> Callable[[Usage], Any] | None:
    return make if asked.stream_options is not None and asked.stream_options.include_usage else None


async def _stream(
    going: Answers,
    first: list[Any],
    chunk: running.Chunk,
    usage: Callable[[Usage], Any] | None,
    headers: dict[str, str],
) -> Stream:
    """A stream of events. What fails before the first token is an ordinary error response."""
    stream = running.events(going, first, chunk, usage)
    try:
        await going.begin()
    except BaseException:
        going.close()
        raise

    async def content() -> AsyncIterator[bytes]:
        try:
            async for item in stream:
                yield item
        finally:
            await stream.aclose()  # type: ignore[attr-defined]
            going.close()

    return Stream(content(), headers={**headers, "cache-control": "no-cache"}, media_type="text/event-stream")


async def _unless_gone(request: Http, work: Awaitable[T]) -> T:
    """The work's result; it is cancelled if the client leaves before.

    Raises:
        Disconnected: it did.
    """
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_departure(request))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise Disconnected
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _departure(request: Http) -> None:
    while True:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            return


def _nobody_there(_: Http, __: Disconnected) -> Response[None]:
    return Response(None, status_code=499)
