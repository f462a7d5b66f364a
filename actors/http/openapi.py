"""The OpenAPI document of the routes, from their handlers and the shapes that they take and give."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from litestar import Litestar
from litestar.routes import HTTPRoute

from pageant.actors.http.errors import ErrorBody
from pageant.actors.runtime.version import VERSION

_REFERENCE = "#/components/schemas/{name}"
FORM = "multipart/form-data"
_EVENTS = "text/event-stream"
_EVENT = {
    "type": "object",
    "properties": {"event": {"type": "string"}, "data": {"type": "string"}},
    "required": ["data"],
}
Shape = Any  # a Struct, or a tuple of those of which it is one


def describe(
    request: Shape = None,
    answer: Shape = None,
    *,
    streams: bool = False,
    media: str = "application/json",
    form: bool = False,
    query: Sequence[dict[str, Any]] = (),
) -> dict[str, Any]:
    """Return the `opt` of a handler: its input and output. `query` has the parameters of its query, each with a
    schema; `form` is a request whose body is a form.
    """
    found = {"request": request, "answer": answer, "streams": streams, "media": media, "query": query}
    return {**found, "form": form}


def document(app: Litestar) -> dict[str, Any]:
    """The document of an application's routes."""
    handlers = [
        (route.path_format, method.lower(), handler)
        for route in app.routes
        if isinstance(route, HTTPRoute)
        for handler in route.route_handlers
        if handler.opt.get("media")
        for method in handler.http_methods
    ]
    shapes = {
        shape for _, _, one in handlers for name in ("request", "answer") for shape in _shapes(one.opt[name])
    }
    ordered = sorted(shapes | {ErrorBody}, key=str)
    references, components = msgspec.json.schema_components(ordered, ref_template=_REFERENCE)
    known = dict(zip(ordered, references, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for path, method, handler in sorted(handlers, key=lambda one: one[:2]):
        paths.setdefault(path, {})[method] = _operation(path, method, handler, known)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Pageant", "version": VERSION},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _shapes(shape: Shape) -> tuple[Any, ...]:
    if shape is None:
        return ()
    return shape if isinstance(shape, tuple) else (shape,)


def _schema(shape: Shape, known: dict[Any, Any]) -> dict[str, Any]:
    """Return the schema of a body; any text where its shape is not known."""
    found = [known[one] for one in _shapes(shape)]
    if len(found) > 1:
        return {"anyOf": found}
    return found[0] if found else {"type": "string"}


def _operation(path: str, method: str, handler: Any, known: dict[Any, Any]) -> dict[str, Any]:
    """Return the OpenAPI operation of a path."""
    said, opt = (handler.fn.__doc__ or "").strip(), handler.opt
    good: dict[str, Any] = {"description": "It was done."}
    if opt["answer"] is not None or opt["media"] != "application/json":
        good["content"] = {opt["media"]: {"schema": _schema(opt["answer"], known)}}
    if opt["streams"]:
        good["content"][_EVENTS] = {"schema": _EVENT}
    error = {"description": "Why not.", "content": {"application/json": {"schema": known[ErrorBody]}}}
    operation: dict[str, Any] = {
        "summary": said.partition("\n")[0],
        "operationId": handler.fn.__name__,
        "responses": {"200": good, "4XX": error, "5XX": error},
    }
    names = [part[1:-1] for part in path.split("/") if part.startswith("{")]
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names
    ]
    parameters += [{"in": "query", "required": False, **parameter} for parameter in opt["query"]]
    if parameters:
        operation["parameters"] = parameters
    if opt["request"] is not None:
        kind = FORM if opt["form"] else "application/json"
        body = {kind: {"schema": _schema(opt["request"], known)}}
        operation["requestBody"] = {"required": True, "content": body}
    return operation
