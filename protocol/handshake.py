"""Handshake of two nodes: `Hello`, answered by `Welcome` or `Rejected`. A node reads nothing else before it.

The fingerprint covers every message type of the protocol. Nodes of different versions refuse each other by
name rather than misread each other later.
"""

from __future__ import annotations

import hashlib
from functools import cache

from pageant.protocol.message import Message


class Hello(Message, frozen=True, kw_only=True):
    """A node introduces itself to a node that it connected to.

    Incarnation 0 asks the root for one, for a node that was started by hand. The `Welcome` carries it as
    `issued`, and the node connects again under it.
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
    """The answer to a `Hello` that does not fit."""

    reason: str
    """Names both versions."""
    again: bool = False
    """A later `Hello` may fit: the node of that name has not been declared dead yet."""


class Knock(Message, frozen=True, kw_only=True):
    """Never answered: sending it tells the sender whether the other end of a connection exists."""


@cache
def fingerprint() -> str:
    """Return 128 bits over the schema of all messages of `pageant.protocol`, as hexadecimal digits."""
    from pageant.protocol.schema import canonical_schema

    return hashlib.blake2b(canonical_schema(), digest_size=16).hexdigest()
