"""The bound that the benchmark of a plan's answer chooses between two numbers of replicas."""

from __future__ import annotations

import pytest

from pageant.protocol.errors import BadRequest
from pageant.scripts.bench.level import bound_between
from pageant.scripts.planning.outcome import Outcome, RequestTimes, summed_up


def outcome(seconds: float) -> Outcome:
    """One request's, whose first token takes so long."""
    times = RequestTimes(arrived_at=0.0, prompt_tokens=1)
    times.output([seconds])
    return summed_up([times], 1, (0.0,), 0.0, 0)


def test_the_bound_lies_half_way_by_ratio():
    bound = bound_between(outcome(4.0), outcome(1.0))
    assert bound.bounds == {"ttft": 2.0}
    assert bound.broken(outcome(4.0)) and not bound.broken(outcome(1.0))


def test_numbers_that_are_too_near_one_another_are_refused():
    with pytest.raises(
        BadRequest, match=r"planned to take 1\.5 times as long with one replica; expected 2 at least"
    ):
        bound_between(outcome(1.5), outcome(1.0))
