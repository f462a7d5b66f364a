"""recorder ──RecordMessages──▶ node/X ──Recorded, Recorded, ...──▶ recorder: the messages that a node's
actors receive.

A recorder is a visiting node, or the root itself. Each node keeps the messages as its actors receive them,
and sends them in pieces until `EndRecording` comes. Messages that its buffer has no room for are dropped and
counted. No actor waits for a recording. The file of a recording holds the same `Recorded` messages
(`pageant.actors.runtime.recording`).

The recorder also asks the supervisor for the actors' classes and options (`GetActor`), so that a replay
begins with the same.
"""

from __future__ import annotations

import msgspec

from pageant.protocol.message import Message, Request

EVERY_KIND = "*"


class RecordedMessage(
    msgspec.Struct, frozen=True, kw_only=True, array_like=True, forbid_unknown_fields=True, gc=False
):
    """A message that an actor received, encoded as it would travel (see `codec`)."""

    at: float
    """The time of receipt, in seconds since 1970."""
    kind: str
    sender: str
    sender_incarnation: int
    to: str
    to_incarnation: int
    body: bytes
    arrays: tuple[bytes, ...] = ()


class Recorded(Message, frozen=True, kw_only=True):
    """The next part of a recording, in order."""

    node: str
    incarnation: int
    messages: tuple[RecordedMessage, ...]
    dropped: int = 0
    """The number of messages that are missing before this part."""


class RecordMessages(Request[Recorded], frozen=True, kw_only=True):
    """Stream messages from a node's agent."""

    recording: str
    """A name for `EndRecording`."""
    kinds: tuple[str, ...]
    """The kinds to record; `*` is every kind."""
    texts: bool
    """Keep texts. Without it every text is removed."""


class EndRecording(Message, frozen=True, kw_only=True):
    """Tell a node's agent to send the rest of this recording and to end it."""

    recording: str


class ActorDescription(Message, frozen=True, kw_only=True):
    """An actor's class (`module:Class`) and options (a JSON object); both are "" if there is no such actor."""

    cls: str = ""
    options: str = ""


class GetActor(Request[ActorDescription], frozen=True, kw_only=True):
    """Ask the supervisor for an actor's class and options."""

    name: str
