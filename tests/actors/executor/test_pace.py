"""Time that a step may take."""

from __future__ import annotations

import pytest

from pageant.actors.executor.pace import FACTOR, UNKNOWN_SECONDS, Pace


def test_the_first_steps_may_take_very_long():
    assert Pace(10.0).patience(1) == UNKNOWN_SECONDS


def test_short_steps_have_the_same_patience_and_long_ones_their_factor():
    pace = Pace(10.0)
    for tokens in (1, 64, 2048) * 20:
        pace.took(tokens, 0.01 + 0.001 * tokens)
    assert pace.expected(1) == pytest.approx(0.011)
    assert pace.expected(4096) == pytest.approx(0.01 + 4.096)
    assert pace.patience(64) == 10.0
    assert pace.patience(2048) == pytest.approx(FACTOR * 2.058)


def test_where_all_steps_were_alike_more_tokens_take_proportionally_longer():
    pace = Pace(1.0)
    for _ in range(50):
        pace.took(8, 0.02)
    assert pace.expected(8) == pace.expected(1) == pytest.approx(0.02)
    assert pace.expected(2048) == pytest.approx(0.02 * 256)


def test_it_follows_a_machine_that_becomes_slow():
    pace = Pace(1.0)
    for seconds in (0.01, 0.1):
        for tokens in (4, 8, 16, 32) * 60:
            pace.took(tokens, seconds)
    assert pace.expected(8) == pytest.approx(0.1, rel=0.02)
