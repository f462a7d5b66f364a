"""The order of moves and steps."""

import numpy as np

from pageant.actors.executor.moving import REPORT_STEPS, Moving
from pageant.protocol.arrays import int32
from pageant.protocol.tiers import BlockMoves


def moves(saves=(), urgent=0, restores=()):
    return BlockMoves(
        save_blocks=int32(saves),
        save_slots=int32([block + 100 for block in saves]),
        num_urgent=urgent,
        restore_slots=int32([block + 100 for block in restores]),
        restore_blocks=int32(restores),
    )


def test_a_step_waits_for_its_urgent_saves_and_restores_and_not_for_the_others():
    moving = Moving()
    needed = moving.add(moves(saves=[1, 2, 3], urgent=2, restores=[2]), incarnation=5)
    assert not moving.allows(needed)
    move, incarnation = moving.first
    assert incarnation == 5
    assert [column.tolist() for column in move] == [[1, 2], [101, 102], [102], [2]]
    moving.made(0.1)
    assert moving.allows(needed)
    move, _ = moving.first
    assert [column.tolist() for column in move] == [[3], [103], [], []]


def test_the_next_step_waits_for_those_too():
    moving = Moving()
    assert moving.allows(moving.add(None, 1))
    assert moving.allows(moving.add(moves(saves=[1]), 1)), "it is saved beside its own step"
    needed = moving.add(None, 1)
    assert not moving.allows(needed)
    moving.made(0.1)
    assert moving.allows(needed)
    assert moving.first is None


def test_where_nothing_is_ever_moved_nothing_is_reported():
    moving = Moving()
    moving.add(None, 1)
    for _ in range(2 * REPORT_STEPS):
        moving.stepped(3, 0.1)
    assert moving.take_report(1) is None


def test_moves_and_steps_are_reported_once():
    moving = Moving()
    moving.add(moves(saves=[1, 2], urgent=2, restores=[1]), 1)
    moving.made(0.25)
    assert moving.take_report(1) is None, "no step has been computed since"
    moving.stepped(7, 0.5)
    report = moving.take_report(9)
    assert (report.epoch, report.num_moved, report.move_seconds) == (9, 3, 0.25)
    assert report.step_tokens.tolist() == [7]
    np.testing.assert_allclose(report.step_seconds, [0.5])
    for _ in range(REPORT_STEPS - 1):
        moving.stepped(1, 0.1)
        assert moving.take_report(9) is None
    moving.stepped(1, 0.1)
    report = moving.take_report(9)
    assert (report.num_moved, len(report.step_tokens)) == (0, REPORT_STEPS)
