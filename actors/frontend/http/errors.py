"""Errors as clients get them: OpenAI's shape and the right status. What went wrong inside stays inside."""

from __future__ import annotations

import logging
from typing import Any

from litestar import Request, Response
from litestar.exceptions import HTTPException

from pageant.actors.frontend.http.responses import Error
from pageant.actors.frontend.outputs import RequestFailed
from pageant.protocol.errors import BadRequest, EngineClosed, Overloaded, PeerGone, Unsupported
from pageant.protocol.serving import Finished

log = logging.getLogger("pageant.http")

RETRY_SECONDS = 1


class NotFound(Exception):
    """There is no such thing as the client names."""

    def __init__(self, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param, self.code = param, code


def failure(finished: Finished) -> Exception:
    """The error that ended a request."""
    if finished.cause == "overload":
        return Overloaded(finished.message or "the server is overloaded")
    if finished.cause == "request":
        return BadRequest(finished.message or "the request cannot be served", "prompt")
    return RequestFailed(finished.message or "the request failed")


def status_and_body(error: BaseException) -> tuple[int, Error]:
    """What a client is told of an error."""
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
        case Overloaded():
            return 429, Error(message=str(error), type="rate_limit_error", code="overloaded")
        case PeerGone() | EngineClosed():
            return 503, Error(
                message="a part of the engine is down; try again later",
                type="server_error",
                code="unavailable",
            )
        case HTTPException():
            return error.status_code, Error(message=error.detail, type="invalid_request_error")
    return 500, Error(message="the engine failed while it served this request", type="server_error")


def respond(request: Request[Any, Any, Any], error: Exception) -> Response[dict[str, Error]]:
    """The response to a request that failed."""
    status, body = status_and_body(error)
    if status >= 500:
        log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    headers = {"retry-after": str(RETRY_SECONDS)} if status in (429, 503) else {}
    return Response({"error": body}, status_code=status, headers=headers, media_type="application/json")
