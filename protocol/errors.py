"""Exceptions of the whole project, by whose fault it is.

PageantError
├── BadRequest            the caller's: the message names the parameter, what was found and expected
├── ConfigurationError    whoever configured it: an actor cannot start so, however often it is tried
│   └── TopologyError     names the place in the topology
│       └── ArgumentError names the argument of a constructor
├── Refused
│   ├── Overloaded        refused for load; try again later
│   ├── Asleep            refused because the model sleeps
│   ├── NotLoaded         the model was to be loaded on demand, and cannot be
│   └── Unsupported       a request needs a feature that an actor of this topology lacks
├── PeerGone              an actor that was asked died, or its node did
│   └── GivenUp           and will not be restarted
├── NoSuchActor           nobody of that name in this topology
├── DeadlineExceeded      no answer within the time given
│   └── RequestExpired    a request's own deadline passed before it was submitted
├── RemoteError           the handler that was asked raised: carries the cause's class and message
├── StartupError          an actor could not be started; its notes have the traceback
├── EngineClosed          you closed it
└── ProtocolError         bytes that are no message (see below)
"""

from __future__ import annotations


class PageantError(Exception):
    """Base of every error that Pageant raises on purpose."""

    request_id: str | None = None
    """The request that failed, where a caller has several; else None."""


class BadRequest(PageantError, ValueError):
    """A request that cannot be served as it is.

    `parameter` names the parameter that is wrong, and `place` the part of it that the message begins with. Without a
    `place`, the message may begin with the parameter itself.
    """

    def __init__(self, message: str, parameter: str | None = None, place: str | None = None) -> None:
        super().__init__(message)
        self.parameter, self.place = parameter, place or parameter

    def renamed(self, parameter: str) -> BadRequest:
        """Return the error for a client that knows the parameter by another name."""
        message, place = str(self), self.place or ""
        rest = message[len(place) :]
        begins = bool(place) and message.startswith(place) and not rest[:1].isalnum() and rest[:1] != "_"
        return BadRequest(parameter + rest if begins else message, parameter)


class ConfigurationError(PageantError, ValueError):
    """A setting, checkpoint or resource that keeps an actor from starting. Starting the actor again would not help."""


class TopologyError(ConfigurationError):
    """A topology that cannot be run. `place` is a path into it such as `actors.scheduler.node`."""

    def __init__(self, place: str, message: str) -> None:
        super().__init__(f"{place}: {message}" if place else message)
        self.place, self.message = place, message

    def __reduce__(self) -> tuple[type[TopologyError], tuple[str, str]]:
        return TopologyError, (self.place, self.message)

    def within(self, place: str) -> TopologyError:
        """Return this error with its place prefixed, for a topology that is a part of another."""
        return TopologyError(f"{place}.{self.place}".rstrip("."), self.message)


class ArgumentError(TopologyError):
    """An argument of `Engine`, `LLM` or a command that cannot be taken. `place` is its name, as it was written."""

    def __reduce__(self) -> tuple[type[ArgumentError], tuple[str, str]]:
        return ArgumentError, (self.place, self.message)


class Refused(PageantError):
    """A well-formed request that was refused."""


class Overloaded(Refused):
    """Refused for load: a queue is at its bound."""


class Asleep(Refused):
    """Refused because the model sleeps, where requests are not to wait for it to be woken."""


class NotLoaded(Refused):
    """A model was to be loaded for a request, and cannot be. `model` is its name."""

    def __init__(self, message: str, model: str = "") -> None:
        super().__init__(message)
        self.model = model


class Unsupported(Refused):
    """A request needs features that the topology's actors do not declare."""


class PeerGone(PageantError):
    """The actor that was asked died before it answered."""


class GivenUp(PeerGone):
    """The actor that was asked is down, and will not be restarted."""


class NoSuchActor(PageantError):
    """An address that no actor of the topology has."""


class DeadlineExceeded(PageantError, TimeoutError):
    """No answer came in the time that was given for it."""


class RequestExpired(DeadlineExceeded):
    """A request's own `deadline` passed before the request could be submitted."""


class RemoteError(PageantError):
    """A handler that was asked raised an exception; its actor lives on.

    `cause` is the class name of the exception, `detail` its message, `actor` the handler's actor.
    """

    def __init__(self, actor: str, cause: str, detail: str) -> None:
        super().__init__(f"{actor}: {cause}: {detail}")
        self.actor, self.cause, self.detail = actor, cause, detail

    def __reduce__(self) -> tuple[type[RemoteError], tuple[str, str, str]]:
        return RemoteError, (self.actor, self.cause, self.detail)


class StartupError(PageantError):
    """An actor failed to start as often as its limit allows.

    The message is one line. The traceback, where there is one, is a note (PEP 678): Python prints notes of an error
    that nobody catches.
    """


class EngineClosed(PageantError):
    """The engine was used after `close()`."""


class ProtocolError(PageantError):
    """Bytes that are no message. Counted and dropped; never a reason for a process to end."""


class UnknownKind(ProtocolError):
    """The header names a message type that does not exist here."""


class MalformedEnvelope(ProtocolError):
    """The frames or the header are not an envelope."""


class MalformedMessage(ProtocolError):
    """The body or its array frames do not fit the message type. The text carries the path to the field."""
