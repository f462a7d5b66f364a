"""Routes for those who look after a server: health, readiness, metrics, counters, aborts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from litestar import HttpMethod, Response, get, post, route

from pageant.actors.http.errors import NotFound
from pageant.actors.http.openapi import describe
from pageant.actors.http.reading import read
from pageant.actors.http.service import Http, Service
from pageant.actors.http.siblings import Siblings
from pageant.actors.http.streams import encode
from pageant.actors.http.tenants import Caller, caller
from pageant.protocol.errors import BadRequest
from pageant.protocol.fronting import AbortNamed
from pageant.protocol.statistics import Observation

STEPS_MAX = 256
STEPS_FOLLOWED = (STEPS_MAX, 3.0)
"""Of each look of those who follow: at most so many plans, of so many seconds. Looks are a second apart."""
_STEPS = {"name": "steps", "schema": {"type": "integer", "minimum": 0, "maximum": STEPS_MAX}}


class AbortRequest(msgspec.Struct, kw_only=True):
    """`POST /abort_requests`."""

    request_ids: tuple[str, ...]


class Aborted(msgspec.Struct, kw_only=True):
    """Names of the requests that were still running."""

    aborted: list[str]


def routes(
    service: Service,
    is_ready: Callable[[], bool],
    is_healthy: Callable[[], Awaitable[bool]],
    siblings: Siblings,
    page: Callable[[], Awaitable[str]],
    observe: Callable[[int], Awaitable[Observation]],
) -> list[Any]:
    """The routes of this family."""

    @get("/health", opt=describe())
    async def health() -> Response[None]:
        """Answer 200 if the step loop brings output within its time; 503 if not."""
        return Response(None, status_code=200 if await is_healthy() else 503)

    @get("/ready", opt=describe())
    async def ready() -> Response[None]:
        """Answer 200 while requests are accepted; 503 while an actor is missing, or the server shuts down."""
        return Response(None, status_code=200 if is_ready() else 503)

    @route("/ping", http_method=[HttpMethod.GET, HttpMethod.POST], status_code=200, opt=describe())
    async def ping() -> Response[None]:
        """Answer as `/health` does, under the name that SageMaker asks for."""
        return await health.fn()  # type: ignore[no-any-return]

    @get("/metrics", media_type="text/plain; version=0.0.4", opt=describe(media="text/plain"))
    async def metrics() -> str:
        """Counters and gauges, as Prometheus reads them."""
        return await page()

    @get("/statistics", opt=describe(query=(_STEPS,)))
    async def statistics(request: Http) -> Response[bytes]:
        """Everybody's counters, and for an operator the oldest open requests, as JSON. With `steps`, so many of the
        last plans of each executor."""
        seen = await observe(_count(request, "steps", STEPS_MAX))
        return Response(encode(as_seen_by(seen, caller())), media_type="application/json")

    @post("/abort_requests", status_code=200, opt=describe(AbortRequest, Aborted))
    async def abort_requests(request: Http) -> Aborted:
        """End requests by their ids, with what they have by now."""
        asked, _ = read(await request.body(), AbortRequest)
        who = caller()
        aborted = service.abort_all(asked.request_ids, who)
        if missing := tuple(name for name in asked.request_ids if name not in aborted):
            order = AbortNamed(names=missing, tenant=who.tenant, is_operator=who.is_operator)
            for found in await siblings.ask(order):
                aborted += found.names
        if not aborted:
            raise NotFound("none of these requests is running here", "request_ids", "request_not_found")
        return Aborted(aborted=aborted)

    return [health, ping, ready, metrics, statistics, abort_requests]


def _count(request: Http, name: str, most: int) -> int:
    """Return a parameter of the query that is a number of things."""
    text = request.query_params.get(name, "0")
    if not (text.isascii() and text.isdigit() and int(text) <= most):
        raise BadRequest(f"{name} is {text!r:.100}; expected a number from 0 to {most}", name)
    return int(text)


def as_seen_by(seen: Observation, who: Caller) -> Observation:
    """Return the part of an observation that a caller may see: open requests are for operators."""
    seen = without_reasons(seen)
    return seen if who.is_operator else without_requests(seen)


def without_reasons(seen: Observation) -> Observation:
    """An observation as it may be told outside: what actors died of is for the log."""
    actors = tuple(msgspec.structs.replace(entry, reason="") for entry in seen.actors)
    return msgspec.structs.replace(seen, actors=actors)


def without_requests(seen: Observation) -> Observation:
    """Return an observation without the open requests, whose ids are their tenants' own."""
    frontends = {
        name: msgspec.structs.replace(statistics, open=()) for name, statistics in seen.frontends.items()
    }
    return msgspec.structs.replace(seen, frontends=frontends)
