"""Numbered streams over a channel that loses and repeats."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pageant.actors.runtime.streams import Arrival, Incoming, Outgoing
from pageant.protocol.streams import Numbered


class Item(Numbered, frozen=True, kw_only=True):
    payload: int


CREDIT = 5


class LossyStream(RuleBasedStateMachine):
    """A first-in-first-out channel from which messages vanish, in which they repeat, and across which the
    sender may be born again. `Resume` always comes through."""

    def __init__(self) -> None:
        super().__init__()
        self.incarnation = 1
        self.begin_life()
        self.incoming = Incoming("s")

    def begin_life(self) -> None:
        self.outgoing: Outgoing[Item] = Outgoing("s", CREDIT)
        self.channel: list[Item] = []
        self.sent: list[int] = []
        self.taken: list[int] = []

    @precondition(lambda self: self.outgoing.open)
    @rule(payload=st.integers(0, 99))
    def send(self, payload: int) -> None:
        item = self.outgoing.number(Item(number=0, payload=payload))
        self.sent.append(payload)
        self.channel.append(item)

    @precondition(lambda self: self.channel)
    @rule(at=st.integers(0, 50))
    def lose(self, at: int) -> None:
        del self.channel[at % len(self.channel)]

    @precondition(lambda self: self.channel)
    @rule(at=st.integers(0, 50))
    def repeat(self, at: int) -> None:
        at %= len(self.channel)
        self.channel.insert(at, self.channel[at])

    @precondition(lambda self: self.channel)
    @rule()
    def deliver(self) -> None:
        item = self.channel.pop(0)
        match self.incoming.arrive(item.number, self.incarnation, item.start):
            case Arrival.NEXT:
                self.taken.append(item.payload)
            case Arrival.GAP:
                if self.incoming.should_ask():
                    self.channel += self.outgoing.resume(self.incoming.last)

    @rule()
    def acknowledge(self) -> None:
        if self.taken:
            self.outgoing.acknowledge(self.incoming.last)

    @rule()
    def sender_is_born_again(self) -> None:
        self.incarnation += 1
        self.begin_life()

    @precondition(lambda self: self.outgoing.unacknowledged)
    @rule()
    def settle(self) -> None:
        """Once nothing is lost any more and the last message comes again, everything has come."""
        last = self.outgoing.resume(self.outgoing.next_number - 2)
        self.channel += last
        for _ in range(1000):
            if not self.channel:
                break
            self.deliver()
        if self.outgoing.unacknowledged and len(self.taken) < len(self.sent):
            self.channel += last  # what was sent again may have been lost with the rest before
            while self.channel:
                self.deliver()
        assert self.taken == self.sent

    @invariant()
    def everything_is_taken_once_and_in_order(self) -> None:
        assert self.taken == self.sent[: len(self.taken)]

    @invariant()
    def credit_bounds_what_is_kept(self) -> None:
        assert self.outgoing.unacknowledged <= CREDIT
        assert self.outgoing.open == (self.outgoing.unacknowledged < CREDIT)


TestLossyStream = LossyStream.TestCase
TestLossyStream.settings = settings(max_examples=60, stateful_step_count=40)


def test_a_gap_is_asked_about_once_until_something_changes():
    incoming = Incoming("s")
    assert incoming.arrive(1) is Arrival.NEXT
    assert incoming.arrive(3) is Arrival.GAP and incoming.should_ask()
    assert incoming.arrive(4) is Arrival.GAP and not incoming.should_ask()
    # Sent again from 2, but 2 is lost again.
    assert incoming.arrive(3) is Arrival.GAP and incoming.should_ask()
    assert incoming.arrive(2) is Arrival.NEXT
    assert incoming.arrive(2) is Arrival.DUPLICATE


def test_what_an_earlier_life_of_the_sender_sent_is_dropped():
    incoming = Incoming("s")
    assert incoming.arrive(1, 2) is Arrival.NEXT
    assert incoming.arrive(2, 1) is Arrival.DUPLICATE
    assert incoming.arrive(1, 3) is Arrival.NEXT


def test_a_new_receiver_misses_nothing_of_what_was_for_the_former():
    outgoing: Outgoing[Item] = Outgoing("s", CREDIT)
    outgoing.number(Item(number=0, payload=1))
    outgoing.restart()
    assert outgoing.resume(0) == []
    item = outgoing.number(Item(number=0, payload=2))
    assert Incoming("s").arrive(item.number, start=item.start) is Arrival.NEXT


def test_a_new_receiver_that_was_told_too_early_takes_what_comes_after():
    outgoing: Outgoing[Item] = Outgoing("s", CREDIT)
    incoming = Incoming("s")
    early = outgoing.number(Item(number=0, payload=1))  # meant for the former, before its end was known
    assert incoming.arrive(early.number, start=early.start) is Arrival.NEXT
    outgoing.restart()
    again = outgoing.number(Item(number=0, payload=1))
    assert incoming.arrive(again.number, start=again.start) is Arrival.NEXT


def test_a_new_receiver_has_what_was_sent_to_it_before_the_end_of_the_former_was_known():
    outgoing: Outgoing[Item] = Outgoing("s", CREDIT)
    items = [outgoing.number(Item(number=0, payload=payload)) for payload in range(CREDIT)]
    outgoing.acknowledge(items[0].number)
    incoming = Incoming("s")
    again = outgoing.hand_over()
    assert [item.payload for item in again] == [item.payload for item in items[1:]]
    assert all(incoming.arrive(item.number, start=item.start) is Arrival.NEXT for item in again)
    outgoing.acknowledge(incoming.last)
    assert outgoing.open and outgoing.hand_over() == []
    further = outgoing.number(Item(number=0, payload=0))
    assert Incoming("s").arrive(further.number, start=further.start) is Arrival.NEXT
