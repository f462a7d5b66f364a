"""Sequences that wait for blocks of a store: together, in order, and within the memory that there is."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from pageant.actors.blocks.allocation import Allocation
from pageant.actors.blocks.costs import MoveCosts
from pageant.actors.blocks.pool import BlockPool
from pageant.actors.blocks.stored import Mirror, StoredBlocks, stored_name
from pageant.protocol.allocation import Admission, Assign, Assigned
from pageant.protocol.arrays import bools, int32, int64
from pageant.protocol.block_names import block_names, full_blocks, root_name

BLOCK_SIZE = 4
KIND = b"kind"


class Manager:
    """An allocation with a store that has some prompts, asked in few words."""

    def __init__(self, num_blocks: int) -> None:
        self.core = Allocation(BlockPool(num_blocks), BLOCK_SIZE)
        self.mirror = Mirror()
        self.stored = StoredBlocks(
            self.core.pool, self.core.groups, self.mirror, MoveCosts(), KIND, BLOCK_SIZE
        )
        self.core.use_store(self.stored)
        self.steps = 0

    def keep(self, *prompts: range) -> None:
        for prompt in prompts:
            contents, _ = full_blocks(int32(prompt), BLOCK_SIZE)
            self.mirror.names.update(stored_name(KIND, name) for name in block_names(root_name(), contents))

    def admit(self, *prompts: range, budget: int = 100, waits: bool = True) -> list[tuple[int, int]]:
        """Return the serials that are admitted, with their cached tokens. A serial is a prompt's first token.

        Those that are refused wait for blocks of the store, or for copies to end, if `waits`.
        """
        answer = self.exchange(admissions=prompts, budget=budget)
        assert answer.awaits_stored == (waits and len(answer.admitted) < len(prompts))
        return [(one.serial, one.num_cached_tokens) for one in answer.admitted]

    def end(self, *prompts: range) -> None:
        """End sequences that have been computed."""
        self.exchange(freed=prompts)

    def exchange(
        self, admissions: Iterable[range] = (), freed: Iterable[range] = (), budget: int = 100
    ) -> Assigned:
        """Carry out the next exchange, after whose former one all was computed."""
        self.steps += 1
        answer = self.core.assign(
            Assign(
                step=self.steps,
                epoch=1,
                computed_step=self.steps - 1,
                learned_serials=int64(),
                learned_counts=int32(),
                token_ids=int32(),
                freed=int64([prompt[0] for prompt in freed]),
                grow_serials=int64(),
                grow_lengths=int32(),
                admissions=tuple(Admission(serial=one[0], token_ids=int32(one)) for one in admissions),
                admission_tokens=budget,
            )
        )
        self.core.check_integrity()
        return answer

    def arrive(self, serial: int, *, whole: bool = True) -> None:
        (arrival,) = [one for one in self.arrivals if one.serial == serial]
        self.stored.end_arrival(arrival, bools([whole] * len(arrival.names)))
        self.core.check_integrity()

    def fetch(self) -> dict[int, int]:
        """Take the arrivals that are wanted. Return how many blocks each sequence wants."""
        self.arrivals = self.stored.take_arrivals()
        return {arrival.serial: len(arrival.names) for arrival in self.arrivals}


PROMPTS = range(100, 110), range(200, 210), range(300, 310)


@pytest.fixture
def manager():
    made = Manager(64)
    made.keep(*PROMPTS)
    return made


def test_those_behind_one_that_waits_fetch_their_blocks_with_it(manager):
    assert manager.admit(*PROMPTS) == []
    assert manager.fetch() == {100: 2, 200: 2, 300: 2}
    assert manager.admit(*PROMPTS) == [] and not manager.stored.take_arrivals(), "each fetches once"
    for serial in (100, 200, 300):
        manager.arrive(serial)
    assert manager.admit(*PROMPTS) == [(100, 8), (200, 8), (300, 8)]


def test_the_first_goes_first_whoevers_blocks_come_first(manager):
    manager.admit(*PROMPTS)
    manager.fetch()
    manager.arrive(200)
    assert manager.admit(*PROMPTS) == []
    manager.arrive(100)
    assert manager.admit(*PROMPTS) == [(100, 8), (200, 8)]


def test_what_is_not_in_the_store_fetches_nothing_and_keeps_its_place(manager):
    other = range(400, 410)
    assert manager.admit(PROMPTS[0], other, PROMPTS[1]) == []
    assert manager.fetch() == {100: 2, 200: 2}
    manager.arrive(100)
    assert manager.admit(PROMPTS[0], other, PROMPTS[1]) == [(100, 8), (400, 0)]


def test_blocks_that_are_not_whole_are_computed(manager):
    manager.admit(*PROMPTS[:2])
    manager.fetch()
    manager.arrive(100)
    manager.arrive(200, whole=False)
    assert manager.admit(*PROMPTS[:2]) == [(100, 8), (200, 0)]


def test_those_behind_leave_half_of_the_free_blocks():
    # Each needs 3 blocks. The first takes 2 of 12; of the next, each wants 6 to be free.
    manager = Manager(12)
    prompts = [range(start, start + 10) for start in range(100, 700, 100)]
    manager.keep(*prompts)
    assert manager.admit(*prompts) == []
    assert manager.fetch() == {100: 2, 200: 2, 300: 2, 400: 2}
    assert manager.core.pool.num_free == 4


def test_one_that_lacks_blocks_under_copy_waits_for_the_copies_to_end():
    """It can be admitted later, so that nobody may call it too large."""
    manager, (first, second, *_) = Manager(4), PROMPTS
    assert manager.admit(first) == [(100, 0)]
    manager.end(first)
    due = manager.stored.take_unsaved(10)
    save = manager.stored.begin_save(due, int64([0, 1]), int64([1, 1]))
    assert not manager.stored.take_room_awaited()
    assert manager.admit(second) == []
    manager.stored.end_save(save, bools([True, True]))
    assert manager.stored.take_room_awaited() and not manager.stored.take_room_awaited()
    assert manager.admit(second) == [(200, 0)]


def test_one_that_lacks_blocks_which_come_for_another_that_gave_up_waits():
    manager, (first, second, *_) = Manager(4), PROMPTS
    manager.keep(first)
    assert manager.admit(first) == []
    manager.fetch()
    (arrival,) = manager.arrivals
    manager.stored.give_up(arrival)
    assert manager.admit(second) == []
    manager.arrive(100)
    assert manager.stored.take_room_awaited()
    assert manager.admit(second) == [(200, 0)]


def test_one_that_lacks_blocks_of_a_running_sequence_waits_for_no_copies():
    manager, (first, second, *_) = Manager(4), PROMPTS
    assert manager.admit(first) == [(100, 0)]
    manager.admit(second, waits=False)
    assert not manager.stored.take_room_awaited()
