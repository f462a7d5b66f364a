"""Requests that move between planned replicas, by the product's own rule: none is lost, and fewer are preempted."""

from __future__ import annotations

import numpy as np
import pytest

from pageant.protocol.arrays import int32
from pageant.scripts.planning.cluster import PlannedCluster
from pageant.scripts.planning.replica import ReplicaShape
from pageant.scripts.planning.requests import PlannedRequest
from pageant.scripts.replay.costs import Fitted, StepCosts

SHAPE = ReplicaShape(num_blocks=90, block_size=16, max_model_len=800, max_num_batched_tokens=512)
COSTS = StepCosts()
COSTS.fitted = Fitted(constant=0.01, token=1e-4)
LONGEST = 600
SEEDS = range(3)


def long_tailed(seed: int, count: int = 160, rate: float = 14.0) -> list[PlannedRequest]:
    """Return requests whose outputs follow a Pareto distribution: most are short, and few are very long."""
    chance = np.random.default_rng(seed)
    at, asked = 0.0, []
    for _ in range(count):
        at += float(chance.exponential(1 / rate))
        output = int(min(LONGEST, max(4, chance.pareto(1.0) * 24)))
        prompt = int32(chance.integers(1, 30_000, int(chance.integers(32, 128))))
        asked.append(PlannedRequest(at, prompt, output, LONGEST + 40))
    return asked


def serve(asked: list[PlannedRequest], *, rebalance: bool) -> PlannedCluster:
    cluster = PlannedCluster(SHAPE, COSTS, (1.0,) * 4, rebalance=rebalance)
    cluster.outcome = cluster.run(asked)  # type: ignore[attr-defined]
    return cluster


@pytest.fixture(scope="module")
def served():
    """Return the same loads, served without moves and with them."""
    return [[serve(long_tailed(seed), rebalance=moves) for moves in (False, True)] for seed in SEEDS]


def test_a_third_fewer_requests_are_preempted_at_least(served):
    without, with_moves = (sum(pair[at].outcome.preemptions for pair in served) for at in (0, 1))
    assert without and with_moves <= 0.7 * without
    assert all(pair[0].moves == 0 for pair in served) and sum(pair[1].moves for pair in served) > 0


def test_a_request_that_moves_says_each_of_its_tokens_once(served):
    for seed, (_, moved) in zip(SEEDS, served, strict=True):
        assert not moved.outcome.refused
        for request, times in zip(long_tailed(seed), moved.requests, strict=True):
            assert times.output_tokens == request.output_tokens
            assert times.arrived_at < times.first_at <= times.last_at


def test_single_steps_move_requests_likewise():
    """Where plans have one step each, nothing of a request is on its way when it moves."""
    asked = long_tailed(0, 120)
    shape = ReplicaShape(
        num_blocks=90, block_size=16, max_model_len=800, max_num_batched_tokens=512, max_steps_per_plan=1
    )
    cluster = PlannedCluster(shape, COSTS, (1.0,) * 4)
    outcome = cluster.run(asked)
    assert outcome.moves > 0
    assert [one.output_tokens for one in cluster.requests] == [one.output_tokens for one in asked]
