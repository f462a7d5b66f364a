"""The application: all families of routes, and who may come in."""

from __future__ import annotations

import base64
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from litestar import Litestar, Request, Response
from litestar.config.cors import CORSConfig
from litestar.connection import ASGIConnection
from litestar.datastructures import Headers
from litestar.enums import ScopeType
from litestar.exceptions import (
    ClientException,
    MethodNotAllowedException,
    NotAuthorizedException,
    NotFoundException,
    PermissionDeniedException,
)
from litestar.handlers.base import BaseRouteHandler

from pageant.actors.http.errors import (
    Disconnected,
    has_left,
    nobody_there,
    respond,
)
from pageant.actors.http.page.asking import wants_page
from pageant.actors.http.tenants import Keys, came_from
from pageant.actors.http.unserved import not_served

OPEN_PATHS = {"/health", "/ready", "/ping"}  # without a key
BASIC = 'Basic realm="Pageant: any name, and an API key as the password", charset="UTF-8"'
_JSON = re.compile(r"application/([\w.-]+\+)?json\b", re.IGNORECASE)

# Asynchronous: others are called in a thread, once for each request.
Guard = Callable[[ASGIConnection[Any, Any, Any, Any], BaseRouteHandler], Awaitable[None]]


def make_app(
    routes: Sequence[Any],
    *,
    keys: Keys,
    allowed_origins: Sequence[str],
    body_bytes_max: int,
    errors: Counter[str],
) -> Litestar:
    """An application of these routes. `errors` counts by status the answers that are errors."""

    def failed(request: Request[Any, Any, Any], error: Exception) -> Response[Any]:
        if has_left(error):
            return nobody_there(request, error)
        response = respond(request, _explained(request, error))
        errors[str(response.status_code)] += 1
        return response

    return Litestar(
        route_handlers=list(routes),
        exception_handlers={Exception: failed, Disconnected: nobody_there},
        guards=[_key_guard(keys), _origin_guard(allowed_origins), _content_guard(allowed_origins)],
        cors_config=CORSConfig(allow_origins=list(allowed_origins)) if allowed_origins else None,
        openapi_config=None,
        request_max_body_size=body_bytes_max,
        logging_config=None,
    )


def _explained(request: Request[Any, Any, Any], error: Exception) -> Exception:
    """Return the error of a path or a method that no route serves, with what is served; other errors as they are."""
    if isinstance(error, NotFoundException):
        return not_served(request.url.path, {route.path_format for route in request.app.routes})
    if isinstance(error, MethodNotAllowedException):
        methods = ", ".join((error.headers or {}).values()).split(", ")
        allowed = ", ".join(sorted(method for method in methods if method.isupper()))
        error.headers = {"allow": allowed}
        error.detail = f"{request.method} is no method of {request.url.path!r:.200}; expected {allowed}"
    return error


def _origin_guard(allowed: Sequence[str]) -> Guard:
    """Refuses WebSockets of other origins' pages, which browsers let through whatever CORS says. What is no page names
    no origin, or the server's own."""

    async def guard(connection: ASGIConnection[Any, Any, Any, Any], _: BaseRouteHandler) -> None:
        if connection.scope["type"] == ScopeType.WEBSOCKET and _is_foreign(connection, allowed):
            raise PermissionDeniedException("pages of this origin may not call; see allowed_origins")

    return guard


def _is_foreign(connection: ASGIConnection[Any, Any, Any, Any], allowed: Sequence[str]) -> bool:
    """Tell whether a web page calls that is neither the server's own nor of an allowed origin."""
    origin = connection.headers.get("origin")
    if origin is None or {"*", origin} & {*allowed}:
        return False
    return origin.partition("://")[2] != connection.headers.get("host")


def _content_guard(allowed: Sequence[str]) -> Guard:
    """Refuse what a browser lets any web page send without asking the server first: bodies of other types than JSON,
    and those of no type. Who is no browser may leave the type out, and send forms where they are taken."""

    async def guard(connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
        if connection.scope["type"] != ScopeType.HTTP or connection.scope["method"] != "POST":
            return
        if handler.opt.get("form"):
            if _is_foreign(connection, allowed):
                raise ClientException("pages of this origin may not send forms", status_code=415)
            return
        kind = connection.headers.get("content-type", "")
        if kind and not _JSON.match(kind):
            reason = f"content-type is {kind!r:.80}; expected application/json"
            raise ClientException(reason, status_code=415)
        if not kind and _is_foreign(connection, allowed):
            reason = "a web page's request has no content-type; expected application/json"
            raise ClientException(reason, status_code=415)

    return guard


def _key(headers: Headers) -> str:
    """Return the key of a request: a bearer's, the password of any user, or that of Anthropic's clients; "" if none."""
    scheme, _, given = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "basic":
        try:
            return base64.b64decode(given.strip(), validate=True).decode().partition(":")[2]
        except ValueError:  # no base64, or no UTF-8
            return ""
    given = headers.get("authorization", "").removeprefix("Bearer ")
    return (given or headers.get("x-api-key", "")).strip()


def _key_guard(keys: Keys) -> Guard:
    """Refuse requests without one of the keys, and note whose key it is."""

    async def guard(connection: ASGIConnection[Any, Any, Any, Any], _: BaseRouteHandler) -> None:
        if not keys or connection.url.path in OPEN_PATHS:
            return
        found = keys.find(_key(connection.headers))
        if found is None:
            # A browser asks its user for a name and a password, and sends the latter with all that its page asks for.
            headers = {"www-authenticate": BASIC} if wants_page(connection) else None
            reason = "no valid API key was given; expected 'Authorization: Bearer KEY'"
            raise NotAuthorizedException(reason, headers=headers)
        came_from(found)

    return guard
