"""Clients' names of parameters that have other names inside, so that an error names what the client wrote."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import TypeVar

from pageant.protocol.errors import BadRequest

E = TypeVar("E", bound=Exception)

Names = Mapping[str, str]
"""By the name inside, the client's."""

AS_INSIDE: Names = {}


def through(inner: Names, outer: Names) -> Names:
    """Return the names of a request that was made of another one: `outer` has what that one's client wrote."""
    return {**outer, **{name: outer.get(theirs, theirs) for name, theirs in inner.items()}}


def renamed(error: E, names: Names) -> E | BadRequest:
    """Return an error in its client's words."""
    if not isinstance(error, BadRequest) or error.parameter is None or error.parameter not in names:
        return error
    return error.renamed(names[error.parameter])


@contextlib.contextmanager
def written_as(names: Names) -> Iterator[None]:
    """Rename the parameter of errors raised within the context."""
    try:
        yield
    except BadRequest as error:
        raise renamed(error, names) from None
