"""A page with a slider over the steps of a recording: queue, plan and blocks at any of them."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from litestar import Response, get

from pageant.actors.http.app import make_app
from pageant.actors.http.listening import listener, server
from pageant.actors.http.page.files import page_files
from pageant.actors.http.page.routes import file_routes
from pageant.actors.http.service import Http
from pageant.actors.http.streams import encode
from pageant.actors.http.tenants import Keys
from pageant.protocol.errors import BadRequest
from pageant.scripts.replay.load import Load
from pageant.scripts.replay.states import RecordedStates
from pageant.scripts.replay.travel import as_data

HOST = "127.0.0.1"
PAGE = "travel.html"
CONNECTIONS_MAX = 64


def routes(name: str, load: Load, states: RecordedStates) -> list[Any]:
    """Return the page's routes: its files, an overview of the recording, and the state at a step."""
    files = page_files()

    @get("/")
    async def page(request: Http) -> Response[Any]:
        """Return the page."""
        return files[PAGE].respond(request.headers.get("if-none-match", ""))

    @get("/recording")
    async def recording() -> Response[bytes]:
        """Return how many steps and requests there are."""
        told = {
            "name": name,
            "steps": len(states),
            "requests": len(load.submits),
            "num_blocks": load.header.num_blocks,
            "block_size": load.header.block_size,
        }
        return Response(encode(told), media_type="application/json")

    @get("/recording/{step:str}")
    async def step(request: Http) -> Response[bytes]:
        """Return the state at a step, as `pageant replay --until STEP --json` has it."""
        number = request.path_params["step"]
        if not (number.isascii() and number.isdigit()):
            raise BadRequest(f"step is {number!r:.100}; expected a number from 1 to {len(states)}", "step")
        return Response(encode(as_data(states.at(int(number)))), media_type="application/json")

    return [*file_routes(files), page, recording, step]


@contextlib.asynccontextmanager
async def serving(name: str, load: Load, states: RecordedStates, port: int = 0) -> AsyncIterator[str]:
    """Serve the page on this host within the context. Yields its URL.

    Args:
        port: 0 is any that is free.

    Raises:
        TopologyError: the port cannot be had.
    """
    app = make_app(
        routes(name, load, states),
        keys=Keys((), ()),
        allowed_origins=(),
        body_bytes_max=2**16,
        errors=Counter(),
    )
    with contextlib.closing(listener(HOST, port, shared=False)) as socket:
        found = server(app, backlog=CONNECTIONS_MAX, connections_max=CONNECTIONS_MAX, tls={})
        running = asyncio.create_task(found.serve([socket]))
        try:
            yield f"http://{HOST}:{socket.getsockname()[1]}"
        finally:
            found.should_exit = True
            await asyncio.wait([running])


async def serve(path: Path, load: Load, port: int) -> None:
    """Serve the page until the process is asked to end, and say where it is."""
    async with serving(path.name, load, RecordedStates(path, load), port) as url:
        print(f"{path.name} is on {url}; Ctrl-C ends it", flush=True)
        await asyncio.get_running_loop().create_future()
