"""Numbered streams: the step loop's one-way traffic, bounded, and repaired after a gap.

    sender ──Numbered (1, 2, 3, ...)──▶ receiver
    sender ◀──Acknowledge(up_to)──────  receiver     once per step: the sender may forget these
    sender ◀──Resume(after)───────────  receiver     on a gap, or a sender of a new incarnation

A sender keeps what is not acknowledged, and stops at K such messages (its credit), so that a receiver's
mailbox cannot overflow.
"""

from __future__ import annotations

from pageant.protocol.message import Message


class Numbered(Message, frozen=True, kw_only=True):
    """A message of a numbered stream from one sender to one name."""

    number: int
    """From 1, without gaps; no number comes twice."""
    start: int = 1
    """Messages with lower numbers were for a former life of the receiver."""


class Acknowledge(Message, frozen=True, kw_only=True):
    """The receiver has processed `stream` up to this number."""

    stream: str
    up_to: int
    incarnation: int = 0
    """The life of the stream's sender, of which there may be another by now; 0 does not say."""


class Resume(Message, frozen=True, kw_only=True):
    """Send `stream` again from the number after this one."""

    stream: str
    after: int
    incarnation: int = 0
    """The life of the stream's sender; 0 does not say."""
