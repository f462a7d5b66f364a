"""Decoding of what other nodes send, nodes of another version of the protocol included."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from pageant.protocol.codec import Codec
from pageant.protocol.compatibility import PeerProtocol
from pageant.protocol.errors import MalformedMessage
from pageant.protocol.message import Message

log = logging.getLogger("pageant.remote")


class Reader:
    """Decodes the messages of linked nodes. From a node of another version it takes the fields that are known here.

    Args:
        name: this node's name.
        protocol_of: returns the protocol of a linked node, if that is of another version.
    """

    def __init__(self, name: str, codec: Codec, protocol_of: Callable[[str], PeerProtocol | None]) -> None:
        self._name, self._codec, self._protocol_of = name, codec, protocol_of
        # Fields that have been logged once, by struct and name.
        self._left_out: set[tuple[str, str]] = set()

    def decode(self, node: str, kind: str, frames: Sequence[Any]) -> Message:
        """Return the message of an envelope.

        Raises:
            ProtocolError: it does not fit its type.
        """
        try:
            return self._codec.decode(kind, frames[1], frames[2:])
        except MalformedMessage:
            protocol = self._protocol_of(node)
            if protocol is None:
                raise
            left_out = partial(self._leave_out, node, protocol)
            return self._codec.decode_known(kind, frames[1], frames[2:], left_out)

    def _leave_out(self, node: str, protocol: PeerProtocol, struct: str, field: str, value: Any) -> None:
        """Warn once of each field that is not known here, unless it says no more than its absence does."""
        if (struct, field) not in self._left_out and not protocol.is_default(struct, field, value):
            self._left_out.add((struct, field))
            log.warning(
                "%s leaves out %s.%s, which node %s of version %s sends and this version does not know",
                *(self._name, struct, field, node, protocol.version),
            )
