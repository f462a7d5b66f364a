"""Columns of what changes with every step, against one sequence at a time."""

from __future__ import annotations

import numpy as np

from pageant.actors.blocks.columns import SLOTS_FIRST, Columns, rounds
from pageant.protocol.arrays import int32, int64


def test_every_sequence_has_a_slot_of_its_own_and_keeps_it_as_more_come():
    columns = Columns(4)
    slots = {serial: columns.open(serial, int32([serial])) for serial in range(3 * SLOTS_FIRST)}
    assert len(set(slots.values())) == len(slots) == len(columns)
    for serial, slot in slots.items():
        assert columns.tails[slot, : columns.num_tail[slot]].tolist() == [serial]
    assert columns.find(int64([5, 10_000, 7])).tolist() == [slots[5], -1, slots[7]]


def test_a_slot_that_is_given_back_remembers_nothing():
    columns = Columns(4)
    slot = columns.open(1, int32([7, 8]))
    columns.grant(slot, 9, step=3)
    columns.unnamed[slot], columns.room[slot] = True, 12
    columns.close(1)
    assert 1 not in columns and columns.open(2, int32()) == slot
    assert not columns.num_tail[slot] and not columns.granted[slot] and not columns.unnamed[slot]
    assert columns.lacked(int64([slot]), int32([1])) == [1], "it has no block yet"


def test_a_grant_keeps_what_was_granted_before():
    columns = Columns(4)
    slots = int64([columns.open(serial, int32()) for serial in range(3)])
    columns.grant(slots, int32([4, 5, 6]), step=1)
    columns.grant(slots[1:], int32([7, 8]), step=2)
    assert columns.granted[slots].tolist() == [4, 7, 8]
    assert columns.granted_before[slots].tolist() == [0, 5, 6]
    assert columns.granted_step[slots].tolist() == [1, 2, 2]


def test_the_first_token_of_the_steps_at_hand_is_known_of_two_of_them():
    columns = Columns(4)
    slots = int64([columns.open(1, int32())])
    for step, tokens in ((1, 4), (2, 7), (3, 12), (4, 13)):
        columns.grant(slots, int32([tokens]), step=step)

    def begin(computed_step, tokens=14):
        return columns.begins(slots, int32([tokens]), computed_step).tolist()

    assert begin(4) == [13], "the one of now"
    assert begin(3) == [12], "the one before it"
    assert begin(2) == [7], "and the one before that"
    assert begin(1) == [-1], "there may be more"
    assert begin(4, tokens=13) == [12], "its last token comes again"


def test_what_is_lacked_is_what_the_room_does_not_hold():
    columns = Columns(4)
    slots = int64([columns.open(serial, int32()) for serial in range(4)])
    columns.room[slots] = [0, 0, 4, 8]
    assert columns.lacked(slots, int32([1, 8, 5, 17])).tolist() == [1, 2, 1, 3]


def test_tails_that_begin_or_are_full_are_told_of():
    columns = Columns(3)
    slots = int64([columns.open(serial, int32(range(serial))) for serial in range(3)])
    assert columns.learn(slots, int32([10, 11, 12])).tolist() == [0, 2]
    assert [columns.tails[slot, : columns.num_tail[slot]].tolist() for slot in slots] == [
        [10],
        [0, 11],
        [0, 1, 12],
    ]


def test_rounds_have_no_slot_twice_and_keep_the_order_of_each():
    chance = np.random.default_rng(0)
    for count in (0, 1, 2, 7, 50):
        slots = chance.integers(0, 9, count)
        parts = rounds(slots)
        assert sorted(np.concatenate(parts).tolist()) == list(range(count))
        for part in parts:
            assert len(set(slots[part].tolist())) == len(part)
        for slot in set(slots.tolist()):
            places = [place for part in parts for place in part.tolist() if slots[place] == slot]
            assert places == sorted(places)
