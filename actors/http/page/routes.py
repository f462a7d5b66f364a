"""Routes of the web page: its files, and the stream of statistics that it draws."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol

from litestar import Response, WebSocket, get, websocket
from litestar.exceptions import WebSocketException

from pageant.actors.http.errors import NotFound
from pageant.actors.http.page.feed import StatisticsFeed
from pageant.actors.http.page.files import PageFile
from pageant.actors.http.service import Http, Service
from pageant.actors.http.streams import ABORT, encode, while_connected
from pageant.actors.http.tenants import Caller, caller
from pageant.protocol.statistics import Observation

AWAY = "null"
"""The message for an observer that does not answer."""

Socket = WebSocket[Any, Any, Any]


class View(Protocol):
    """Returns the part of an observation that a caller may see."""

    def __call__(self, seen: Observation, who: Caller) -> Observation: ...


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

    @websocket("/statistics/stream")
    async def statistics_stream(socket: Socket) -> None:
        """Send everybody's counters, each message as `/statistics` has them, at most one a second. The client's own
        messages are ignored.
        """
        await socket.accept()
        sending = _send_all(socket, feed, partial(view, who=caller()), service.pacemaker.stall_seconds)
        with contextlib.suppress(OSError, RuntimeError, WebSocketException):  # the client left
            await while_connected(sending, socket.receive, socket.scope["state"][ABORT])
            await socket.close()

    return [statistics_stream]


async def _send_all(
    socket: Socket, feed: StatisticsFeed, view: Callable[[Observation], Observation], stall_seconds: float
) -> None:
    """Send observations until the feed is closed.

    Raises:
        TimeoutError: one could not be sent within `stall_seconds`.
    """
    async for seen in feed.follow():
        text = AWAY if seen is None else encode(view(seen)).decode()
        async with asyncio.timeout(stall_seconds):
            await socket.send_text(text)
