"""Deaths: what is expected of whoever dies, and how they are summed up."""

from __future__ import annotations

import random

from pageant.scripts.chaos.killing import PAUSE_SECONDS_MAX, Death, Killer


def death(node: str, away: float, pause: float, suspicion: float | None = None) -> Death:
    return Death(node, 0.1, away, pause, 1.5, suspicion)


def test_only_an_executor_may_take_as_long_as_it_needs_to_be_ready():
    assert death("blocks", 9.0, 2.1).bar == PAUSE_SECONDS_MAX
    assert death("executor", 3.0, 4.9).bar == 3.0 + PAUSE_SECONDS_MAX


def test_of_a_process_that_stopped_nobody_knows_before_it_is_suspected():
    assert death("blocks", 9.0, 2.1, suspicion=4.0).bar == 4.0 + PAUSE_SECONDS_MAX


def test_deaths_are_summed_up_by_who_died_and_how():
    killer = Killer(None, None, random.Random(), 4.0)
    killer.deaths = [
        death("blocks", 0.5, 1.0),
        death("blocks", 0.7, 3.0),
        death("blocks", 4.5, 5.0, suspicion=4.0),
    ]
    found = killer.figures()
    assert list(found) == ["blocks", "blocks, stopped"]
    assert found["blocks"] == {
        "times": 2,
        "noticed_seconds_median": 0.1,
        "away_seconds_median": 0.6,
        "pause_seconds_median": 2.0,
        "cpu_seconds_median": 1.5,
        "pause_seconds_max": 3.0,
        "over_the_bar": 1,
    }
    assert found["blocks, stopped"]["over_the_bar"] == 0
