"""The order of moves and steps."""

import numpy as np

from pageant.actors.executor.tiers.moving import REPORT_STEPS, Moving, Way
from pageant.protocol.arrays import int32
from pageant.protocol.tiers import DISK, BlockMoves, Moved


def moves(saves=(), urgent=0, restores=(), needed=None, spills=()):
    """Blocks, which lie a hundred slots further on; negative ones on the disk."""
    slots = [block + 100 if block >= 0 else DISK - block for block in restores]
    return BlockMoves(
        save_blocks=int32(saves),
        save_slots=int32([block + 100 for block in saves]),
        num_urgent=urgent,
        restore_slots=int32(slots),
        restore_blocks=int32([abs(block) for block in restores]),
        num_needed=len(restores) if needed is None else needed,
        spill_slots=int32(spills),
        spill_to=int32([DISK + slot for slot in spills]),
    )


def queue(moving):
    """Return what is moved, in order, and whether a step that needs so many may go before."""
    while moving.first is not None:
        move, _ = moving.first
        yield move.way.value, move.sources.tolist(), move.destinations.tolist()
        moving.made(0.1)


def test_a_step_waits_for_its_urgent_saves_and_restores_and_not_for_the_others():
    moving = Moving()
    needed = moving.add(moves(saves=[1, 2, 3], urgent=2, restores=[2]), incarnation=5)
    assert not moving.allows(needed)
    move, incarnation = moving.first
    assert incarnation == 5
    assert (move.way, move.sources.tolist(), move.destinations.tolist()) == (Way.SAVE, [1, 2], [101, 102])
    moving.made(0.1)
    assert not moving.allows(needed)
    moving.made(0.1)
    assert moving.allows(needed)
    assert list(queue(moving)) == [("save", [3], [103])]


def test_beside_a_step_blocks_are_spilled_then_saved_then_restored():
    moving = Moving()
    needed = moving.add(moves(saves=[1, 2], urgent=1, restores=[-3, 4, 5, -6], needed=2, spills=[7]), 1)
    found = list(queue(moving))
    assert found == [
        ("save", [1], [101]),
        ("restore", [104], [4]),
        ("read", [DISK + 3], [3]),
        ("write", [7], [DISK + 7]),
        ("save", [2], [102]),
        ("restore", [105], [5]),
        ("read", [DISK + 6], [6]),
    ]
    assert needed == 3


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
    moving.add(moves(saves=[1, 2], urgent=2, restores=[1, -2], spills=[3]), 1)
    for seconds in (0.25, 0.25, 0.5, 1.0):
        moving.made(seconds)
    assert moving.take_report(1) is None, "no step has been computed since"
    moving.stepped(7, 0.5)
    report = moving.take_report(9)
    assert report.epoch == 9
    assert report.host == Moved(blocks=3, seconds=0.5)
    assert (report.read, report.written) == (Moved(blocks=1, seconds=0.5), Moved(blocks=1, seconds=1.0))
    assert report.step_tokens.tolist() == [7]
    np.testing.assert_allclose(report.step_seconds, [0.5])
    for _ in range(REPORT_STEPS - 1):
        moving.stepped(1, 0.1)
        assert moving.take_report(9) is None
    moving.stepped(1, 0.1)
    report = moving.take_report(9)
    assert (report.host, len(report.step_tokens)) == (Moved(), REPORT_STEPS)
