"""Routes of the web page: its files, and the stream of statistics that it draws."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any

from litestar import Response, get

from pageant.actors.http.errors import NotFound
from pageant.actors.http.openapi import describe
from pageant.actors.http.page.feed import StatisticsFeed
from pageant.actors.http.page.files import PageFile
from pageant.actors.http.service import Http, Service
from pageant.actors.http.streams import ByteStream, encode
from pageant.actors.http.tenants import Caller, caller
from pageant.protocol.statistics import Observation

AWAY = b"event: away\ndata: {}\n\n"
"""The event for an observer that does not answer."""

View = Callable[[Observation, Caller], Observation]
"""Returns the part of an observation that a caller may see."""


def file_routes(files: Mapping[str, PageFile]) -> list[Any]:
    """Return the routes of the page's files; the page itself is at `/`, see `about`."""

    @get("/page/{name:str}")
    async def page_file(request: Http) -> Response[Any]:
        """Return a file of the page."""
        name = request.path_params["name"]
        if name not in files:
            raise NotFound(f"the page has no file {name!r:.100}")
        return files[name].respond(request.headers.get("if-none-match", ""))

    return [page_file]


def stream_routes(service: Service, feed: StatisticsFeed, view: View) -> list[Any]:
    """Return the route that streams what `/statistics` returns."""

    @get("/statistics/stream", opt=describe(media="text/event-stream"))
    async def statistics_stream() -> ByteStream:
        """Send everybody's counters as server-sent events, each as `/statistics` has them, at most once a second."""
        return ByteStream(_events(feed, view, caller()), service.pacemaker, {})

    return [statistics_stream]


async def _events(feed: StatisticsFeed, view: View, who: Caller) -> AsyncGenerator[bytes, None]:
    async for seen in feed.follow():
        yield AWAY if seen is None else b"data: " + encode(view(seen, who)) + b"\n\n"
