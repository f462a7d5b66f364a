"""Numbered streams: how the step loop's one-way traffic is bounded, and mended after a gap.

    sender ──Numbered (1, 2, 3, ...)──▶ receiver
    sender ◀──Acknowledge(up_to)──────  receiver     once per step: the sender may forget these
    sender ◀──Resume(after)───────────  receiver     on a gap, or a sender of a new incarnation

A sender keeps what is not acknowledged, and stops at K such messages (its credit), so that a receiver's
mailbox cannot overflow.
"""

from __future__ import annotations

from pageant.protocol.message import Message


class Numbered(Message, frozen=True, kw_only=True):
    """A message of a numbered stream from one sender to one name. Numbers start at 1, without gaps, and never come
    twice. What has a number below `start` was for a former life of the receiver."""

    number: int
    start: int = 1


class Acknowledge(Message, frozen=True, kw_only=True):
    """Everything of `stream` up to this number has been taken in."""

    stream: str
    up_to: int
    incarnation: int = 0
    """Of the stream's sender, of whom there may be another by now; 0 does not say."""


class Resume(Message, frozen=True, kw_only=True):
    """Send `stream` again from the number after this one."""

    stream: str
    after: int
    incarnation: int = 0
    """As above."""
