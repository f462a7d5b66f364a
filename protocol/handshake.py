"""Handshake of two nodes: `Hello`, answered by `Welcome` or `Rejected`. A node reads nothing else before it.

The fingerprint covers every message type of the protocol. Where it differs, the two nodes tell each other their
protocols, and either understand each other in spite of it, as `compatibility` says, or refuse each other by name
rather than misread each other later.
"""

from __future__ import annotations

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
    protocol: bytes = b""
    """`OwnProtocol.describe()`, told to a node that has rejected another fingerprint with its own."""


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
    protocol: bytes = b""
    """`OwnProtocol.describe()` of the node that rejects: a `Hello` with the sender's own may fit."""
    version: str = ""
    """The version of the node that rejects."""


class Knock(Message, frozen=True, kw_only=True):
    """Never answered: sending it tells the sender whether the other end of a connection exists."""


def fingerprint() -> str:
    """Return 128 bits over the types of all messages of `pageant.protocol`, as hexadecimal digits."""
    from pageant.protocol.compatibility import own_protocol

    return own_protocol().fingerprint
