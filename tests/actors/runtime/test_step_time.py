"""Times of steps: numpy's least squares as the oracle."""

from __future__ import annotations

import numpy as np
import pytest

from pageant.actors.runtime.step_time import StepTime

STEPS = [(1, 0.011), (512, 0.3), (4, 0.013), (64, 0.05), (9, 0.02), (200, 0.1)]


@pytest.mark.parametrize("keep", [1.0, 0.98, 0.5])
def test_the_line_is_that_of_weighted_least_squares(keep):
    time = StepTime(keep)
    for tokens, seconds in STEPS:
        time.add(tokens, seconds)
    tokens, seconds = (np.array(column, float) for column in zip(*STEPS, strict=True))
    weights = keep ** np.arange(len(STEPS))[::-1]
    slope, fixed = np.polyfit(tokens, seconds, 1, w=np.sqrt(weights))
    assert time.each(0.0) == pytest.approx(slope)
    assert time.mean_seconds - slope * time.mean_tokens == pytest.approx(fixed)
    assert time.mean_seconds == pytest.approx(np.average(seconds, weights=weights))


def test_steps_that_are_alike_have_no_line():
    time = StepTime(0.9)
    assert not time.is_known
    for _ in range(3):
        time.add(7, 0.1)
    assert time.is_known and time.each(0.0) is None
    time.add(8, 0.1)
    assert time.each(10.0) is None and time.each(0.0) is not None


def test_a_line_may_fall_by_chance():
    time = StepTime(0.9)
    time.add(1, 0.2)
    time.add(2, 0.1)
    each = time.each(0.0)
    assert each is not None and each < 0
