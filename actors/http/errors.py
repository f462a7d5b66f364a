"""Errors as clients get them: OpenAI's shape and the right status. What went wrong inside stays inside."""

from __future__ import annotations

import logging
from typing import Any

import msgspec
from litestar import Request, Response
from litestar.exceptions import HTTPException, InternalServerException

from pageant.actors.frontend.outputs import RequestFailed
from pageant.protocol.errors import (
    Asleep,
    BadRequest,
    DeadlineExceeded,
    EngineClosed,
    NoSuchActor,
    NotLoaded,
    Overloaded,
    PeerGone,
    RequestExpired,
    Unsupported,
)
from pageant.protocol.serving import Finished

log = logging.getLogger("pageant.http")

RETRY_SECONDS = 1
_LEFT = "client disconnected prematurely"  # as Litestar says it, in an error of no class of its own


class Error(msgspec.Struct, kw_only=True):
    """An error for a client. `param` is the field that it is about."""

    message: str
    type: str
    param: str | None = None
    code: str | int | None = None


class ErrorBody(msgspec.Struct, kw_only=True):
    """The body of every answer that is an error."""

    error: Error


class TypedErrorBody(ErrorBody, kw_only=True):
    """An error for Anthropic's clients, who look for its type here, and for other types."""

    type: str = "error"


_ANTHROPIC_KINDS = {
    **{400: "invalid_request_error", 401: "authentication_error", 404: "not_found_error"},
    **{413: "request_too_large", 429: "rate_limit_error", 503: "overloaded_error"},
}
ANTHROPIC_PATH = "/v1/messages"


def anthropic_kind(error: Error) -> str:
    """Return the type that Anthropic's clients know an error by, where there is no status any more."""
    if error.type == "server_error":
        return "overloaded_error" if error.code == "unavailable" else "api_error"
    return error.type


class NotFound(Exception):
    """The client named a thing that does not exist."""

    def __init__(self, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param, self.code = param, code


class Disconnected(Exception):
    """The client went away before its answer came."""


class Draining(Overloaded):
    """The server is shutting down."""


def failure(finished: Finished) -> Exception:
    """The error that ended a request."""
    if finished.cause == "overload":
        return Overloaded(finished.message or "the server is overloaded")
    if finished.cause == "request":
        return BadRequest(finished.message or "the request cannot be served", "prompt")
    return RequestFailed(finished.message or "the request failed")


def status_and_body(error: BaseException) -> tuple[int, Error]:
    """Return the HTTP status and the body of an error."""
    match error:
        case BadRequest():
            return 400, Error(
                message=str(error), type="invalid_request_error", param=error.parameter, code="invalid_value"
            )
        case Unsupported():
            return 400, Error(message=str(error), type="invalid_request_error", code="unsupported")
        case NotFound():
            return 404, Error(
                message=str(error), type="invalid_request_error", param=error.param, code=error.code
            )
        case RequestExpired():
            return 408, Error(message=str(error), type="timeout_error", code="deadline_exceeded")
        case Asleep():
            return 503, Error(message=str(error), type="server_error", code="asleep")
        case NotLoaded():
            message = f"the model {error.model!r} cannot be loaded"  # why is for the log
            return 503, Error(message=message, type="server_error", code="model_not_loaded")
        case Draining():
            return 503, Error(message=str(error), type="server_error", code="unavailable")
        case Overloaded():
            return 429, Error(message=str(error), type="rate_limit_error", code="overloaded")
        case PeerGone() | EngineClosed() | DeadlineExceeded() | NoSuchActor():
            return 503, Error(
                message="a part of the engine is down or does not answer; try again later",
                type="server_error",
                code="unavailable",
            )
        case HTTPException() if error.status_code < 500:
            return error.status_code, Error(message=error.detail, type="invalid_request_error")
    return 500, Error(message="the engine failed while it served this request", type="server_error")


def told(error: BaseException) -> ErrorBody:
    """Return the body of an error in a stream, which has no status any more."""
    status, body = status_and_body(error)
    _log("a stream", status, error)
    return ErrorBody(error=body)


def _log(what: str, status: int, error: BaseException) -> None:
    """Log the part of an error that the client does not see."""
    if status == 503:
        log.warning("%s was turned away: %s", what, error)
    elif status >= 500:
        log.error("%s failed", what, exc_info=error)


def nobody_there(request: Request[Any, Any, Any], _: Exception) -> Response[None]:
    """Return the response that nobody will read."""
    log.info("%s %r: the client left", request.method, request.url.path[:200])
    return Response(None, status_code=499)


def has_left(error: Exception) -> bool:
    """Return whether an error says that the client left before its request was whole."""
    return isinstance(error, InternalServerException) and error.detail == _LEFT


def respond(request: Request[Any, Any, Any], error: Exception) -> Response[ErrorBody]:
    """The response to a request that failed."""
    status, body = status_and_body(error)
    _log(f"{request.method} {request.url.path!r:.200}", status, error)
    headers = {"retry-after": str(RETRY_SECONDS)} if status in (429, 503) else {}
    if isinstance(error, HTTPException) and status in (401, 405):
        headers |= error.headers or {}
    shape = ErrorBody(error=body)
    if request.url.path.startswith(ANTHROPIC_PATH):
        body.type = _ANTHROPIC_KINDS.get(status, "api_error" if status >= 500 else "invalid_request_error")
        shape = TypedErrorBody(error=body)
    return Response(shape, status_code=status, headers=headers, media_type="application/json")
