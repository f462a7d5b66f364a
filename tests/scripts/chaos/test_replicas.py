"""Bars of `pageant chaos` with replicas: which of a run's figures miss them."""

from __future__ import annotations

import pytest

from pageant.scripts.chaos.replicas import bars_missed

DIED = {"pause_seconds_max": 0.9, "others_gap_p99_before": 0.05, "others_gap_max": 0.1}
GOOD = {
    "lost": [],
    "changed": [],
    "died": {"engine-0": DIED},
    "cycles": {"share_seconds_max": 4.9, "actors_left": []},
}


@pytest.mark.parametrize(
    ("figures", "missed"),
    [
        (GOOD, []),
        (GOOD | {"lost": ["request 1: PeerGone"]}, ["1 requests were lost"]),
        (GOOD | {"changed": ["a", "b"]}, ["2 requests were changed"]),
        (
            GOOD | {"died": {"advice": DIED | {"pause_seconds_max": 1.2}}},
            ["advice: streams paused for 1.2 s, not 1"],
        ),
        (
            GOOD | {"died": {"engine-1": DIED | {"others_gap_max": 0.11}}},
            ["engine-1: a stream of another replica waited for 0.11 s, not 0.1"],
        ),
        (
            GOOD | {"cycles": {"share_seconds_max": 6.0, "actors_left": ["replica-2/blocks"]}},
            ["a new replica had its share after 6 s", "actors are left: ['replica-2/blocks']"],
        ),
    ],
)
def test_a_run_misses_the_bars_that_its_figures_do_not_hold(figures, missed):
    assert bars_missed(figures) == missed
