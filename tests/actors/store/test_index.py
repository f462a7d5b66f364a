"""The store's index: room, eviction, reservations, pins, and what ends with their owner."""

from __future__ import annotations

import pytest

from pageant.actors.store.index import NOWHERE, StoreIndex
from pageant.protocol.arena import SlotState

A, B = ("replica-0/blocks", 1), ("replica-1/blocks", 1)
KIND, OTHER = b"k" * 16, b"o" * 16
PAGE = 4096


def name(number: int) -> bytes:
    return number.to_bytes(16, "little")


class Recorder:
    """An index of 16 chunks of a page, with what it says to others."""

    def __init__(self) -> None:
        self.headers: dict[int, tuple[bytes, int, SlotState]] = {}
        self.names: set[bytes] = set()
        self.index = StoreIndex(16 * PAGE, self.header, self.note)

    def header(self, slot: int, name: bytes, generation: int, state: SlotState) -> None:
        self.headers[slot] = (name, generation, state)

    def note(self, name: bytes, kind: bytes, came: bool) -> None:
        (self.names.add if came else self.names.remove)(name)

    def save(self, number: int, size: int = PAGE, owner=A, kind: bytes = KIND):
        place = self.index.reserve(name(number), kind, size, owner)
        self.index.settle(place, owner, ok=True)
        return place


@pytest.fixture
def store():
    recorder = Recorder()
    yield recorder
    recorder.index.check_integrity()
    assert recorder.names == {*recorder.index.names(KIND), *recorder.index.names(OTHER)}


def test_a_block_is_found_from_its_reservation_on_and_pinned_once_it_is_saved(store):
    place = store.index.reserve(name(1), KIND, PAGE, A)
    assert name(1) in store.names
    assert store.index.is_due(name(1))
    assert store.index.pin(name(1), B) == NOWHERE
    assert store.index.reserve(name(1), KIND, PAGE, B) == NOWHERE, "one writes it"
    assert store.headers[place.slot] == (name(1), place.generation, SlotState.WRITING)
    store.index.settle(place, B, ok=True)
    assert store.index.is_due(name(1)), "it is not theirs"
    store.index.settle(place, A, ok=True)
    assert store.headers[place.slot][2] is SlotState.READY
    assert store.index.pin(name(1), B) == place


def test_the_least_recently_used_block_makes_room_and_pinned_ones_stay(store):
    for number in range(16):
        store.save(number)
    kept = store.index.pin(name(0), B)
    store.index.reserve(name(1), KIND, PAGE, B)  # asked for again: it is used
    first = store.save(20)
    assert name(2) not in store.index
    assert (name(0) in store.index, name(1) in store.index) == (True, True)
    assert first.generation > kept.generation
    for number in range(30, 60):
        store.save(number)
    assert name(0) in store.index
    store.index.settle(kept, B, ok=True)
    for number in range(60, 76):
        store.save(number)
    assert name(0) not in store.index


def test_there_is_no_room_while_everything_is_written_or_read(store):
    for number in range(8):
        store.index.reserve(name(number), KIND, PAGE, A)
    for number in range(8, 16):
        store.save(number)
        store.index.pin(name(number), B)
    assert store.index.reserve(name(20), KIND, PAGE, A) == NOWHERE
    store.index.owner_gone(B)
    assert store.index.reserve(name(20), KIND, PAGE, A) != NOWHERE


def test_blocks_of_other_sizes_take_over_the_room_of_those_that_were_not_used(store):
    for number in range(16):
        store.save(number)
    small = [store.save(100 + number, size=512, kind=OTHER) for number in range(16)]
    assert len({place.slot // PAGE for place in small}) == 2, "eight in a chunk"
    assert name(0) not in store.index
    assert name(2) in store.index
    assert store.index.reserve(name(200), KIND, PAGE + 1, A) == NOWHERE, "larger than a chunk"


def test_what_an_owner_wrote_or_read_ends_with_it_and_its_late_words_mean_nothing(store):
    written = store.index.reserve(name(1), KIND, PAGE, A)
    store.save(2)
    read = store.index.pin(name(2), A)
    store.index.owner_gone(A)
    assert name(1) not in store.index
    assert store.index.counts[1:3] == (0, 0)
    again = store.index.reserve(name(1), KIND, PAGE, B)
    store.index.settle(written, A, ok=True)
    assert store.index.is_due(name(1)), "it is another's by now"
    store.index.settle(read, A, ok=False)
    assert name(2) in store.index, "nor does it spoil what it does not read any more"
    store.index.settle(again, B, ok=True)


def test_a_block_that_was_not_whole_cannot_be_found_any_more(store):
    place = store.save(1)
    store.index.pin(name(1), A)
    store.index.pin(name(1), B)
    store.index.settle(place, A, ok=False)
    assert store.headers[place.slot][2] is SlotState.EMPTY, "whoever reads it sees that"
    assert name(1) not in store.index and store.index.pin(name(1), A) == NOWHERE
    store.index.settle(place, B, ok=True)
    assert name(1) not in store.index, "nor when its last reader has found it whole"
    assert store.index.spoilt == 1


def test_blocks_of_one_kind_are_forgotten_whoever_copies_them(store):
    place = store.index.reserve(name(1), KIND, PAGE, A)
    pinned = store.save(2)
    store.index.pin(name(2), B)
    store.save(3, kind=OTHER)
    assert store.index.forget(KIND) == 2
    store.index.settle(place, A, ok=True)
    store.index.settle(pinned, B, ok=True)
    assert store.names == {name(3)}
