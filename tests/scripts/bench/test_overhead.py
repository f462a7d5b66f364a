"""The overhead benchmark, in small."""

import pytest

from pageant.actors.scheduler.policies import POLICIES
from pageant.scripts.bench import overhead
from pageant.scripts.bench.overhead import Crowd, decoding, fit


def test_a_step_of_decoding_rows_costs_both_cores_something():
    steps = decoding(rows=4, steps=3)
    assert len(steps) == 3
    assert all(one.scheduler > 0 and one.blocks > 0 for one in steps)


@pytest.mark.parametrize("policy", POLICIES)
def test_whoever_ends_is_replaced_from_a_queue_that_stays_as_long(policy, monkeypatch):
    monkeypatch.setattr(overhead, "BATCH", 8)
    crowd = Crowd(policy, waiting=20)
    ended = 0
    for _ in range(100):
        ended += crowd.cores.ended
        crowd.step()
    assert ended > 5
    core = crowd.cores.core
    assert core.num_running + core.num_waiting + crowd.cores.ended == 28
    core.check_integrity()


def test_a_line_is_found_through_the_figures():
    intercept, slope = fit({rows: 0.080 + 0.002 * rows for rows in (1, 16, 256, 4096)})
    assert intercept == pytest.approx(80) and slope == pytest.approx(2)
