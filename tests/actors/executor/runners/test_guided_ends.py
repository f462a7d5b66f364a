"""Patience of recorded steps for masks before they compute what these would spare."""

from __future__ import annotations

import pytest

from pageant.actors.executor.guided.keeping import SOON_SECONDS
from pageant.actors.executor.runners.guided_ends import MaskTiming, Played

STEPS = 300


def played(timing: MaskTiming, late: float, whole: float, share: float) -> float:
    """Plays a step of which all rows are narrow, whose masks come `late` seconds after its head began. Returns how long
    that took, with waiting."""
    came_before, patience = late <= 0, timing.patience
    first = waited = 0.0
    is_narrow = came_before
    if not came_before and patience:
        waited = min(late, patience)
        is_narrow = late <= patience
    elif not came_before:
        first = whole
    done = waited + (whole * (1 - share) if is_narrow else whole)
    waited_more = max(0.0, late - done)
    timing.learn(
        Played(first, done, waited, waited_more, came_before, came=True, narrow=int(is_narrow), share=share),
        took=1.0,
    )
    assert timing.took == 1.0 - waited - waited_more
    return done + waited_more


@pytest.mark.parametrize("whole", [0.001, 0.004, 0.02])
@pytest.mark.parametrize("share", [0.5, 0.75, 0.95, 0.98])
@pytest.mark.parametrize("late", [0.1, 0.4, 0.8, 0.9, 0.94, 0.97, 1.02, 1.05, 1.5, 2, 5])
def test_waiting_costs_little_more_than_none_and_gains_where_it_can(whole, share, late):
    """Lateness in units of the whole head."""
    timing = MaskTiming()
    took = [played(timing, late * whole, whole, share) for _ in range(STEPS)]
    never = max(1, late) * whole
    assert sum(took) < 1.1 * STEPS * never
    if late < 0.95 * share and late * whole < 0.95 * SOON_SECONDS:
        assert took[-50:] == pytest.approx([(late + 1 - share) * whole] * 50)


def test_masks_that_come_sooner_again_are_waited_for_again():
    timing = MaskTiming()
    for _ in range(50):
        played(timing, 0.02, 0.004, 0.75)
    assert timing.patience == 0
    took = [played(timing, 0.001, 0.004, 0.75) for _ in range(STEPS)]
    assert took[-50:] == pytest.approx([0.002] * 50)


def test_nothing_is_waited_for_that_spares_nothing():
    timing = MaskTiming()
    for _ in range(50):
        assert played(timing, 0.001, 0.004, 0.0) == 0.004
        assert timing.patience == 0


def test_masks_that_are_there_before_need_no_patience():
    timing = MaskTiming()
    took = [played(timing, 0.0, 0.004, 0.75) for _ in range(50)]
    assert took == [0.001] * 50
