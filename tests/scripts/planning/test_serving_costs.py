"""Times outside of steps: how they are found from what a client and a recording saw, and what they do to a plan."""

from __future__ import annotations

import itertools

import pytest

from pageant.protocol.arrays import int32
from pageant.scripts.planning.cluster import PlannedCluster
from pageant.scripts.planning.replica import ReplicaShape
from pageant.scripts.planning.requests import PlannedRequest
from pageant.scripts.planning.serving_costs import NO_SERVING, Seen, ServingCosts, step_before
from pageant.scripts.replay.costs import Fitted, StepCosts, StepSize

SHAPE = ReplicaShape(num_blocks=512, block_size=16, max_model_len=1024)
COSTS = StepCosts()
COSTS.fitted = Fitted(constant=0.01)


def served(serving: ServingCosts, *due: float) -> PlannedCluster:
    cluster = PlannedCluster(SHAPE, COSTS, serving=serving)
    prompts = [int32(range(1 + number, 101 + number)) for number in range(len(due))]
    cluster.run(PlannedRequest(at, prompt, 4, 4) for at, prompt in zip(due, prompts, strict=True))
    return cluster


def test_first_tokens_come_later_by_what_serving_takes_and_gaps_stay():
    (plain,), (other,) = (
        served(one, 1.0).requests for one in (NO_SERVING, ServingCosts((0.005,), 0.0, (0.003,)))
    )
    assert (plain.arrived_at, other.arrived_at) == (1.0, 1.0)
    assert other.first_token - plain.first_token == pytest.approx(0.008)
    assert other.gaps.tolist() == pytest.approx(plain.gaps.tolist())


def test_requests_that_come_at_once_reach_the_scheduler_one_after_another():
    """The first is alone in its step; the second comes when that is under way and another is planned behind it."""
    one, other = served(ServingCosts((0.005,), 0.002), 0.0, 0.0).requests
    assert one.first_token == pytest.approx(0.015) and other.first_token == pytest.approx(0.035)


def test_costs_are_found_from_requests_alone_and_from_rounds():
    alone = [Seen(1, at, at + 0.004, at + 0.014, at + 0.016) for at in (1.0, 2.0, 3.0)]
    many = [Seen(9, 5.0, 5.004 + 0.001 * number, 5.1, 5.2) for number in range(9)]
    found = ServingCosts.of([*alone, *many])
    assert found.request == pytest.approx((0.004,) * 3) and found.output == pytest.approx((0.002,) * 3)
    assert found.handling == pytest.approx(0.001)
    assert found.as_data() == pytest.approx({"request": 0.004, "handling": 0.001, "output": 0.002})


def test_draws_are_the_same_each_time_and_of_what_was_seen():
    costs = ServingCosts((0.001, 0.002), 0.0, (0.003, 0.005))
    one, other = ([*itertools.islice(costs.draw(), 50)] for _ in range(2))
    assert one == other
    assert set(one) == set(itertools.product(costs.request, costs.output))


def test_merged_costs_have_what_each_run_saw():
    one, other = ServingCosts((0.003,), 0.001, (0.004,)), ServingCosts((0.001,), 0.003, (0.002,))
    assert ServingCosts.merged([one, other]) == ServingCosts((0.001, 0.003), 0.002, (0.002, 0.004))


def test_merged_steps_are_fitted_together():
    parts = [StepCosts() for _ in range(2)]
    for number, part in enumerate(parts):
        for tokens in (1, 100 + 100 * number):
            part.add(StepSize(tokens, 1, tokens), 0.001 + 1e-4 * tokens)
    merged = StepCosts.merged(parts)
    assert len(merged) == 4
    assert merged.expected(StepSize(150, 1, 150)) == pytest.approx(0.016, rel=1e-3)


def test_the_step_before_a_moment_is_the_last_that_was_over():
    assert [step_before([1.0, 2.0], at) for at in (0.5, 1.0, 1.5, 3.0)] == [None, 1.0, 1.0, 2.0]
