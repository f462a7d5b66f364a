"""Numbered streams, both ends, as cores: numbering, credit, acknowledgement, and mending a gap.

See `protocol/streams`. The sender keeps what is not acknowledged; `resume` sends it again. The receiver
takes each number once, in order.
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
    """The sending end, to one receiver. `name` is what the receiver knows the stream by."""

    def __init__(self, name: str, credit: int = CREDIT) -> None:
        self.name, self.credit = name, credit
        self._kept: deque[N] = deque()
        self._last, self._start = 0, 1

    @property
    def open(self) -> bool:
        """Whether there is credit for another message."""
        return len(self._kept) < self.credit

    @property
    def next_number(self) -> int:
        """The number of the next message."""
        return self._last + 1

    @property
    def unacknowledged(self) -> int:
        """How many messages are kept."""
        return len(self._kept)

    def number(self, message: N) -> N:
        """Gives a message its number and keeps it. It is to be sent now."""
        assert self.open, f"stream {self.name}: {self.credit} messages are unanswered"
        self._last += 1
        msgspec.structs.force_setattr(message, "number", self._last)
        msgspec.structs.force_setattr(message, "start", self._start)
        self._kept.append(message)
        return message

    def acknowledge(self, up_to: int) -> None:
        """Forgets what the receiver has."""
        while self._kept and self._kept[0].number <= up_to:
            self._kept.popleft()

    def resume(self, after: int) -> list[N]:
        """What is to be sent again, in order."""
        return [message for message in self._kept if message.number > after]

    def hand_over(self) -> list[N]:
        """The receiver is a new one, and is to have what the former did not say that it had. Returns that, in order."""
        self._start = self._kept[0].number if self._kept else self._last + 1
        self._kept = deque(msgspec.structs.replace(message, start=self._start) for message in self._kept)
        return list(self._kept)

    def restart(self) -> None:
        """The receiver is a new one: what was kept was for the old one. Numbers go on: the new one may have had some
        of these before we heard of it."""
        self._kept.clear()
        self._start = self._last + 1


class Arrival(enum.Enum):
    """What a received number means."""

    NEXT = "next"  # take it
    DUPLICATE = "duplicate"  # had before; drop it
    GAP = "gap"  # drop it, and ask to resume after `last`


class Incoming:
    """The receiving end, of one sender."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.last = 0
        self.start = 1  # of the stream as the sender has it: it begins anew when this grows
        self.incarnation = 0
        self._asked = False
        self._highest = 0  # beyond a gap

    def arrive(self, number: int, incarnation: int = 0, start: int = 1) -> Arrival:
        """Takes in a number. A sender of a new incarnation starts at 1 again; what comes before `start` is missed by
        nobody."""
        if incarnation > self.incarnation:
            self.begin(incarnation)
        if start > self.last + 1 and incarnation == self.incarnation:
            self.last, self._asked, self._highest = start - 1, False, 0
        if incarnation == self.incarnation and start > self.start:
            self.start = start
        if number <= self.last or incarnation < self.incarnation:
            return Arrival.DUPLICATE
        if number > self.last + 1:
            if number <= self._highest:  # sent again, but what was missing is missing still
                self._asked = False
            self._highest = max(self._highest, number)
            return Arrival.GAP
        self.last, self._asked = number, False
        return Arrival.NEXT

    def begin(self, incarnation: int) -> None:
        """The sender is of a new incarnation: what its former says is heard no more."""
        self.incarnation, self.last, self.start = incarnation, 0, 1
        self._asked, self._highest = False, 0

    def reply(self, arrival: Arrival) -> Acknowledge | Resume | None:
        """What the sender is told of an arrival, once what is next has been taken in."""
        if arrival is not Arrival.GAP:
            return Acknowledge(stream=self.name, up_to=self.last, incarnation=self.incarnation)
        if not self.should_ask():
            return None
        return Resume(stream=self.name, after=self.last, incarnation=self.incarnation)

    def should_ask(self) -> bool:
        """Whether this gap is to be reported: once, until something is taken or comes again."""
        asked, self._asked = self._asked, True
        return not asked
