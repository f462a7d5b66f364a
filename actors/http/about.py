"""Routes that tell what a server is: its index, its API's document and page, its models, its load."""

from __future__ import annotations

import platform
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from litestar import Request, Response, get

from pageant.actors.http.docs_page import docs_page
from pageant.actors.http.openapi import describe, document
from pageant.actors.http.page.asking import wants_page
from pageant.actors.http.page.files import PageFile
from pageant.actors.http.service import Service
from pageant.actors.http.streams import encode
from pageant.actors.runtime.address import replica_of
from pageant.actors.runtime.version import VERSION
from pageant.protocol.statistics import Observation


class Version(msgspec.Struct, kw_only=True):
    """The version of this software."""

    version: str


class Index(msgspec.Struct, kw_only=True):
    """An overview of a server: its models, and the paths of its routes."""

    name: str
    version: str
    models: list[str]
    routes: list[str]
    docs: str = "/docs"


class Load(msgspec.Struct, kw_only=True):
    """The number of requests that are open at this server."""

    server_load: int


class ModelInfo(msgspec.Struct, kw_only=True):
    """A model that is served, and the devices that compute it."""

    name: str
    max_model_len: int
    vocab_size: int
    adapters: list[str]
    devices: list[DeviceInfo]


class DeviceInfo(msgspec.Struct, kw_only=True):
    """An executor: its device, the type of its weights, and the blocks of its KV cache."""

    actor: str
    device: str
    dtype: str
    num_blocks: int
    block_size: int


class ActorInfo(msgspec.Struct, kw_only=True):
    """An actor of the topology."""

    name: str
    node: str
    up: bool
    restarts: int


class ServerInfo(msgspec.Struct, kw_only=True):
    """The software, the models and the actors of a server."""

    version: str
    python: str
    models: list[ModelInfo]
    actors: list[ActorInfo]


def server_info(service: Service, seen: Observation) -> ServerInfo:
    """Return what a server is made of, by an observation of it."""
    models = [served for served in service.models.values() if served.parent is None]
    return ServerInfo(
        version=VERSION,
        python=platform.python_version(),
        models=[
            ModelInfo(
                name=served.name,
                max_model_len=served.limits.max_model_len,
                vocab_size=served.limits.vocab_size,
                adapters=[one.name for one in service.models.values() if one.parent == served.name],
                devices=[
                    DeviceInfo(
                        actor=name,
                        device=executor.device,
                        dtype=executor.dtype,
                        num_blocks=executor.num_blocks,
                        block_size=executor.block_size,
                    )
                    for name, executor in seen.executors.items()
                    if replica_of(name).startswith(served.replica)
                ],
            )
            for served in models
        ],
        actors=[
            ActorInfo(name=entry.name, node=entry.node, up=entry.up, restarts=entry.restarts)
            for entry in seen.actors
        ],
    )


def routes(
    service: Service, observe: Callable[[], Awaitable[Observation]], page: PageFile | None
) -> list[Any]:
    """Return the routes of this family; `page` is for browsers, at `/`."""

    @get("/", opt=describe(answer=Index))
    async def index(request: Request[Any, Any, Any]) -> Response[Any]:
        """List the models and routes of this server; for a browser, return its web page."""
        if page is not None and wants_page(request):
            return page.respond(request.headers.get("if-none-match", ""), vary="accept")
        paths = sorted({route.path_format for route in request.app.routes})
        told = Index(name="Pageant", version=VERSION, models=list(service.models), routes=paths)
        return Response(encode(told), headers={"vary": "accept"}, media_type="application/json")

    @get("/version", opt=describe(answer=Version))
    async def version() -> Version:
        """Return the version of this software."""
        return Version(version=VERSION)

    @get("/load", opt=describe(answer=Load))
    async def load() -> Load:
        """Count the requests that are open at this server."""
        return Load(server_load=service.num_open)

    @get("/server_info", opt=describe(answer=ServerInfo))
    async def info() -> ServerInfo:
        """The models, devices and actors of this server."""
        return server_info(service, await observe())

    @get("/openapi.json")
    async def openapi(request: Request[Any, Any, Any]) -> Response[bytes]:
        """The document of this API."""
        return Response(encode(document(request.app)), media_type="application/json")

    @get("/docs", opt=describe(media="text/html"))
    async def docs(request: Request[Any, Any, Any]) -> Response[str]:
        """Show the API document as a page for people."""
        return Response(docs_page(document(request.app)), media_type="text/html")

    return [index, version, load, info, openapi, docs]
