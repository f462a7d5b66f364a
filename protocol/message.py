"""Messages: frozen, tagged Structs, known by their class name in every process.

`Request[Reply]` declares the reply, so that `await self.ask(address, request)` is typed.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import msgspec

R = TypeVar("R")

_kinds: dict[str, type[Message]] = {}


class Message(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag=True, eq=False, gc=True
):
    """Base of all messages. New fields are appended, with defaults.

    Compared by identity: a message may hold arrays, for which `==` means something else.
    """

    def __init_subclass__(cls, **config: Any) -> None:
        super().__init_subclass__(**config)
        name = cls.__name__
        if "[" in name:  # a parametrised generic, made by typing
            return
        known = _kinds.get(name)
        if known is not None and (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
            raise TypeError(
                f"two message types are called {name}: {known.__module__} and {cls.__module__}; "
                "a message is known by its class name in every process, so names must differ"
            )
        _kinds[name] = cls


class Request(Message, Generic[R], frozen=True, kw_only=True):
    """A message that is answered with an `R`."""


def kind_of(name: str) -> type[Message] | None:
    """Return the message type of that name, or None."""
    return _kinds.get(name)


def all_kinds() -> tuple[type[Message], ...]:
    """Return every message type that this process knows, sorted by name."""
    return tuple(_kinds[name] for name in sorted(_kinds))
