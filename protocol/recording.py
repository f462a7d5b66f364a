"""recorder ──RecordMessages──▶ node/X ──Recorded, Recorded, ...──▶ recorder: what the actors of a node are told.

A recorder is a node that visits, or the root itself. Each node keeps what its actors are given, as they are given it,
and sends it on in pieces until `EndRecording` comes; what it has no room for is dropped and counted. Nobody waits for
it. The same `Recorded` are what a recording's file holds (`pageant.actors.runtime.recording`).

The recorder also asks the supervisor what actors are (`GetActor`), so that a replay begins with the same.
"""

from __future__ import annotations

import msgspec

from pageant.protocol.message import Message, Request

EVERY_KIND = "*"


class RecordedMessage(
    msgspec.Struct, frozen=True, kw_only=True, array_like=True, forbid_unknown_fields=True, gc=False
):
    """A message that an actor was given, at `at` (seconds since 1970), as it would travel (see `codec`)."""

    at: float
    kind: str
    sender: str
    sender_incarnation: int
    to: str
    to_incarnation: int
    body: bytes
    arrays: tuple[bytes, ...] = ()


class Recorded(Message, frozen=True, kw_only=True):
    """The next piece, in order; `dropped` messages before it are missing."""

    node: str
    incarnation: int
    messages: tuple[RecordedMessage, ...]
    dropped: int = 0


class RecordMessages(Request[Recorded], frozen=True, kw_only=True):
    """Stream from a node's agent: messages of these `kinds` (`*` is every one), without any text unless `texts`.

    `recording` is a name for `EndRecording`.
    """

    recording: str
    kinds: tuple[str, ...]
    texts: bool


class EndRecording(Message, frozen=True, kw_only=True):
    """To a node's agent: send what is left of this recording, and no more."""

    recording: str


class ActorDescription(Message, frozen=True, kw_only=True):
    """An actor's class (`module:Class`) and options (a JSON object); both are "" of one that is not there."""

    cls: str = ""
    options: str = ""


class GetActor(Request[ActorDescription], frozen=True, kw_only=True):
    """Ask the supervisor what an actor is."""

    name: str
