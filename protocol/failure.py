"""Errors on their way back to an asker: the body of an `ERROR` envelope, and the exception that it becomes
again.
"""

from __future__ import annotations

from typing import Literal

from pageant.protocol.errors import (
    BadRequest,
    DeadlineExceeded,
    NoSuchActor,
    Overloaded,
    PageantError,
    PeerGone,
    RemoteError,
    Unsupported,
)
from pageant.protocol.message import Message

Fault = Literal["handler", "gone", "unknown", "overloaded", "unsupported", "bad_request", "deadline"]

_FAULTS: dict[type[PageantError], Fault] = {
    PeerGone: "gone",
    NoSuchActor: "unknown",
    Overloaded: "overloaded",
    Unsupported: "unsupported",
    BadRequest: "bad_request",
    DeadlineExceeded: "deadline",
}
_ERRORS: dict[str, type[PageantError]] = {fault: error for error, fault in _FAULTS.items()}


class Failure(Message, frozen=True, kw_only=True):
    """An ask that failed."""

    fault: Fault
    """Who is at fault; decides the exception that the asker gets."""
    actor: str
    """The actor whose handler raised."""
    cause: str
    """The class name of the exception."""
    detail: str
    """The message of the exception."""


def printable(text: str) -> str:
    """Return a text that can travel. Lone surrogates, as in the names of odd files, are escaped."""
    return text.encode("utf-8", "backslashreplace").decode()


def failure_of(error: BaseException, actor: str) -> Failure:
    """Return the message to send for an exception that `actor` raised."""
    if isinstance(error, RemoteError):  # an ask within a handler failed: the first cause is what matters
        return Failure(fault="handler", actor=error.actor, cause=error.cause, detail=error.detail)
    fault = _fault_of(type(error))
    return Failure(fault=fault, actor=actor, cause=type(error).__name__, detail=printable(str(error)))


def _fault_of(cls: type[BaseException]) -> Fault:
    """Return the fault of the nearest base class that has one."""
    return next((_FAULTS[base] for base in cls.__mro__ if base in _FAULTS), "handler")


def error_of(failure: Failure) -> PageantError:
    """Return the exception that the asker gets."""
    if failure.fault == "handler":
        return RemoteError(failure.actor, failure.cause, failure.detail)
    return _ERRORS[failure.fault](failure.detail)
