"""Numbered streams, both ends, as cores: numbering, credit, acknowledgement, and repair of gaps.

See `protocol/streams`. The sender keeps what is not acknowledged; `resume` sends it again. The receiver takes
each number once, in order.
"""

from __future__ import annotations

import enum
from collections import deque
from typing import Generic, TypeVar

import msgspec

from pageant.protocol.streams import Acknowledge, Numbered, Resume

N = TypeVar("N", bound=Numbered)

CREDIT = 64


class Outgoing(Generic[N]):
    """The sending end, to one receiver. The receiver knows the stream by `name`."""

    def __init__(self, name: str, credit: int = CREDIT) -> None:
        self.name, self.credit = name, credit
        self._kept: deque[N] = deque()
        self._last, self._start = 0, 1

    @property
    def open(self) -> bool:
        """Tell whether there is credit for another message."""
        return len(self._kept) < self.credit

    @property
    def next_number(self) -> int:
        """Return the number of the next message."""
        return self._last + 1

    @property
    def unacknowledged(self) -> int:
        """Return how many messages are kept."""
        return len(self._kept)

    def number(self, message: N) -> N:
        """Give a message its number and keep it. The caller must send it now."""
        assert self.open, f"stream {self.name}: {self.credit} messages are unanswered"
        self._last += 1
        msgspec.structs.force_setattr(message, "number", self._last)
        msgspec.structs.force_setattr(message, "start", self._start)
        self._kept.append(message)
        return message

    def acknowledge(self, up_to: int) -> None:
        """Forget the messages that the receiver has."""
        while self._kept and self._kept[0].number <= up_to:
            self._kept.popleft()

    def resume(self, after: int) -> list[N]:
        """Return the messages to send again, in order."""
        return [message for message in self._kept if message.number > after]

    def hand_over(self) -> list[N]:
        """Return the messages to send to a new receiver, in order: those that the former did not acknowledge."""
        self._start = self._kept[0].number if self._kept else self._last + 1
        self._kept = deque(msgspec.structs.replace(message, start=self._start) for message in self._kept)
        return list(self._kept)

    def restart(self) -> None:
        """Forget the messages that were kept for a former receiver.

        Numbers go on: the new receiver may have got some of these messages before it was known to be new.
        """
        self._kept.clear()
        self._start = self._last + 1


class Arrival(enum.Enum):
    """The meaning of a received number."""

    NEXT = "next"  # take it
    DUPLICATE = "duplicate"  # had before; drop it
    GAP = "gap"  # drop it, and ask to resume after `last`


class Incoming:
    """The receiving end, of one sender."""

    def __init__(self, name: str) -> None:
        self.name = name
        # The number of the last message that was taken.
        self.last = 0
        # The start of the stream, as the sender has it. The stream begins anew when this grows.
        self.start = 1
        # The sender's life. Messages of earlier lives are duplicates.
        self.incarnation = 0
        # The present gap has been reported.
        self._asked = False
        # The highest number seen beyond a gap.
        self._highest = 0

    def arrive(self, number: int, incarnation: int = 0, start: int = 1) -> Arrival:
        """Take in a number.

        A sender of a new incarnation starts at 1 again. Numbers before `start` were for a former receiver, and
        leave no gap.
        """
        if incarnation > self.incarnation:
            self.begin(incarnation)
        if start > self.last + 1 and incarnation == self.incarnation:
            self.last, self._asked, self._highest = start - 1, False, 0
        if incarnation == self.incarnation and start > self.start:
            self.start = start
        if number <= self.last or incarnation < self.incarnation:
            return Arrival.DUPLICATE
        if number > self.last + 1:
            # The sender has sent these again, and the missing one is still missing.
            if number <= self._highest:
                self._asked = False
            self._highest = max(self._highest, number)
            return Arrival.GAP
        self.last, self._asked = number, False
        return Arrival.NEXT

    def begin(self, incarnation: int) -> None:
        """Start over with a new incarnation of the sender. Messages of the former are ignored."""
        self.incarnation, self.last, self.start = incarnation, 0, 1
        self._asked, self._highest = False, 0

    def reply(self, arrival: Arrival) -> Acknowledge | Resume | None:
        """Return the answer to an arrival, after the message was taken in; None if the gap has been reported."""
        if arrival is not Arrival.GAP:
            return Acknowledge(stream=self.name, up_to=self.last, incarnation=self.incarnation)
        if not self.should_ask():
            return None
        return Resume(stream=self.name, after=self.last, incarnation=self.incarnation)

    def should_ask(self) -> bool:
        """Tell whether to report this gap: once, until a message is taken or comes again."""
        asked, self._asked = self._asked, True
        return not asked
