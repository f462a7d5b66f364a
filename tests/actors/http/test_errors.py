"""Errors as clients are told of them, and what they are not told."""

from __future__ import annotations

import pytest
from litestar.exceptions import HTTPException, InternalServerException, MethodNotAllowedException

from pageant.actors.frontend.outputs import RequestFailed
from pageant.actors.http.errors import (
    Draining,
    NotFound,
    failure,
    status_and_body,
    told,
)
from pageant.protocol.errors import (
    BadRequest,
    DeadlineExceeded,
    EngineClosed,
    NoSuchActor,
    Overloaded,
    PeerGone,
    RemoteError,
    RequestExpired,
    Unsupported,
)
from pageant.protocol.serving import Finished

INSIDE = "/srv/models/secret.bin: 0x7f3a"


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (BadRequest("n is 0", "n"), 400, "invalid_request_error"),
        (Unsupported("no seeds"), 400, "invalid_request_error"),
        (NotFound("no such model", "model", "model_not_found"), 404, "invalid_request_error"),
        (MethodNotAllowedException(), 405, "invalid_request_error"),
        (HTTPException("too large", status_code=413), 413, "invalid_request_error"),
        (RequestExpired("the deadline passed"), 408, "timeout_error"),
        (Overloaded("full"), 429, "rate_limit_error"),
        (Draining("shutting down"), 503, "server_error"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_a_client_can_mend_it_is_told(error, status, kind):
    found, body = status_and_body(error)
    assert (found, body.type) == (status, kind)
    assert body.message == str(getattr(error, "detail", error))
    assert body.param == getattr(error, "parameter", getattr(error, "param", None))


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (PeerGone(INSIDE), 503),
        (EngineClosed(INSIDE), 503),
        (DeadlineExceeded(INSIDE), 503),
        (NoSuchActor(INSIDE), 503),
        (RequestFailed(INSIDE), 500),
        (RemoteError("executor/0", "OSError", INSIDE), 500),
        (InternalServerException(INSIDE), 500),
        (OSError(INSIDE), 500),
        (failure(Finished(reason="error", message=INSIDE)), 500),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_went_wrong_inside_stays_inside(error, status, caplog):
    found, body = status_and_body(error)
    assert (found, body.type) == (status, "server_error")
    assert INSIDE not in body.message
    assert INSIDE not in told(error).error.message
    assert INSIDE in caplog.text  # but somebody is
