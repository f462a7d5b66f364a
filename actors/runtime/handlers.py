"""Tables of handlers: which annotated method takes which message, and how it is run.

The table is made when an actor class is defined. A mistake is therefore an error at import and not a message
without a handler.
"""

from __future__ import annotations

import enum
import inspect
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints, overload

from pageant.protocol.message import Message
from pageant.protocol.roles import Role

F = TypeVar("F", bound=Callable[..., Any])

_MARK = "__receives__"


class Style(enum.Enum):
    """The way in which a handler answers."""

    CALL = "call"  # a plain function: returns the reply
    AWAIT = "await"  # a coroutine: its result is the reply
    STREAM = "stream"  # an async generator: each item is a reply


@dataclass(frozen=True, slots=True)
class Handler:
    """An entry of an actor's table. `name` is looked up on the instance, so that subclasses may override."""

    name: str
    style: Style
    concurrent: bool


@overload
def receives(function: F, /) -> F: ...
@overload
def receives(*, concurrent: bool) -> Callable[[F], F]: ...
def receives(function: Any = None, /, *, concurrent: bool = False) -> Any:
    """Mark a method as the handler of the message type that its parameter is annotated with.

    Args:
        concurrent: may interleave with other handlers; otherwise they run one at a time, in order.
    """

    def mark(method: Any) -> Any:
        setattr(method, _MARK, concurrent)
        return method

    return mark if function is None else mark(function)


def build_table(cls: type) -> dict[type[Message], Handler]:
    """Return the handlers of an actor class, its bases' included.

    The nearest definition wins, both for a message type and for a method's name. An override need not be marked
    again.

    Raises:
        TypeError: a handler is not annotated with a message type, or two of one class take the same.
    """
    table: dict[type[Message], Handler] = {}
    marked: set[str] = set()
    for base in cls.__mro__:
        here: dict[type[Message], Handler] = {}
        for name, method in vars(base).items():
            if not hasattr(method, _MARK) or name in marked:
                continue
            marked.add(name)
            handler = Handler(name, _style(getattr(cls, name)), getattr(method, _MARK))
            for kind in _message_types(base, name, method):
                if kind in here:
                    where = f"{base.__module__}.{base.__qualname__}"
                    raise TypeError(f"{where}: both {here[kind].name} and {name} take {kind.__name__}")
                here[kind] = handler
        table = here | table
    return table


def check_role(cls: type, role: Role, table: dict[type[Message], Handler]) -> None:
    """Refuse a class that lacks a handler for a message of its role."""
    missing = [kind.__name__ for kind in role.receives if kind not in table]
    if missing:
        raise TypeError(
            f"{cls.__module__}.{cls.__qualname__} takes the role of {role.name} but has no handler for "
            f"{', '.join(missing)}; write a method marked @receives that takes it"
        )


def _style(method: Any) -> Style:
    if inspect.isasyncgenfunction(method):
        return Style.STREAM
    return Style.AWAIT if inspect.iscoroutinefunction(method) else Style.CALL


def _message_types(cls: type, name: str, method: Any) -> tuple[type[Message], ...]:
    where = f"{cls.__module__}.{cls.__qualname__}.{name}"
    parameters = list(inspect.signature(method).parameters)
    if len(parameters) != 2:
        raise TypeError(f"{where}: a handler takes self and one message, not ({', '.join(parameters)})")
    try:
        annotation = get_type_hints(method).get(parameters[1])
    except NameError as error:
        raise TypeError(
            f"{where}: its annotations cannot be read when the class is defined: {error}"
        ) from None
    union = get_origin(annotation) in (Union, types.UnionType)
    kinds = get_args(annotation) if union else (annotation,)
    for kind in kinds:
        if not (isinstance(kind, type) and issubclass(kind, Message)):
            raise TypeError(f"{where}: {parameters[1]} must be annotated with a message type, not {kind!r}")
    return kinds
