"""Tokens that recurrent states take in of a step: drafts that were right with the next one, void rows never."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pageant.actors.executor.batch.recurrent import RecurrentRows, StateTokens

Int32 = npt.NDArray[np.int32]


def int32(*numbers: int) -> Int32:
    return np.array(numbers, np.int32)


def test_drafts_that_were_right_are_replayed_by_the_rows_next_step() -> None:
    rows = RecurrentRows(4)
    rows.add(1)
    rows.add(3)
    first = rows.of_step(int32(1, 3), int32(0, 16), int32(5, 3), None)
    assert not first.replayed.any() and not first.unsure.any(), "a row begins where its states are"
    drafted = rows.of_step(int32(1, 3), int32(5, 19), int32(1, 1), int32(4, 0))
    assert drafted.unsure.tolist() == [4, 0] and not drafted.replayed.any()
    after = rows.of_step(int32(3, 1), int32(20, 8), int32(1, 1), int32(0, 2))
    assert (
        after.rows.tolist() == [3, 1]
        and after.replayed.tolist() == [0, 2]
        and after.unsure.tolist() == [0, 2]
    )
    none_right = rows.of_step(int32(1), int32(9), int32(1), None)
    assert none_right.replayed.tolist() == [0]


def test_a_step_that_is_computed_again_replays_nothing() -> None:
    rows = RecurrentRows(2)
    rows.add(0)
    rows.of_step(int32(0), int32(0), int32(9), None)
    rows.of_step(int32(0), int32(9), int32(1), None)  # void, or taken back
    assert rows.of_step(int32(0), int32(9), int32(1), None).replayed.tolist() == [0]


def test_a_row_that_is_taken_over_begins_anew() -> None:
    rows = RecurrentRows(1)
    rows.add(0)
    rows.of_step(int32(0), int32(0), int32(3), None)
    rows.add(0)
    assert rows.of_step(int32(0), int32(64), int32(1), None).replayed.tolist() == [0]


def test_states_take_in_nothing_of_void_rows_but_what_was_right_before() -> None:
    numbers = np.array([2, 5, 7]), np.array([0, 2, 0]), np.array([0, 0, 3])
    voided = StateTokens(*numbers).voided(np.array([1]), int32(0, 4, 5, 9))
    assert voided.unsure.tolist() == [0, 1, 3] and voided.replayed.tolist() == [0, 2, 0]
    assert numbers[2].tolist() == [0, 0, 3], "other launches have the same step"
