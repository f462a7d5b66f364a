"""How two nodes meet: `Hello`, answered by `Welcome` or `Rejected`. Nothing else is heard before it.

The fingerprint covers every message type of the protocol; nodes of different versions refuse each other by
name rather than misread each other later.
"""

from __future__ import annotations

import hashlib
from functools import cache

from pageant.protocol.message import Message


class Hello(Message, frozen=True, kw_only=True):
    """A node introduces itself to one that it connected to.

    Incarnation 0 asks the root for one: a node that was started by hand. The `Welcome` then carries it as
    `issued`, and the node comes back under it.
    """

    node: str
    incarnation: int
    version: str
    fingerprint: str
    endpoint: str


class Welcome(Message, frozen=True, kw_only=True):
    """The answer to a `Hello` that fits."""

    node: str
    incarnation: int
    version: str
    fingerprint: str
    issued: int = 0


class Rejected(Message, frozen=True, kw_only=True):
    """The answer to a `Hello` that does not fit. `reason` names both versions. With `again` it may fit later: the
    node of that name has not been given up yet."""

    reason: str
    again: bool = False


class Knock(Message, frozen=True, kw_only=True):
    """Never answered: whether it can be sent tells whether the other end of a connection is there."""


@cache
def fingerprint() -> str:
    """128 bits over the schema of all messages of `pageant.protocol`, as hexadecimal."""
    from pageant.protocol.schema import canonical_schema

    return hashlib.blake2b(canonical_schema(), digest_size=16).hexdigest()
