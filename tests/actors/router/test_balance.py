"""How the router's core shares requests out, in model time (`cluster_model`)."""

from __future__ import annotations

import numpy as np
import pytest

from tests.actors.router.cluster_model import Arrival, ModelCluster, prompt

SEEDS = range(3)


def arrivals(random: np.random.Generator, count: int, per_second: float, make) -> list[Arrival]:
    times = np.cumsum(random.exponential(1 / per_second, count))
    return [Arrival(float(at), *make(number)) for number, at in enumerate(times)]


REQUESTS = 900
PREFIX_TOKENS = 1024


def shared_prefixes(seed: int, prefixes: int) -> list[Arrival]:
    """Requests with one of so many system prompts, some much more wanted than others.

    A replica's cache of 600 blocks holds nine of them.
    """
    random = np.random.default_rng(seed)
    prompts = [prompt(random, [], PREFIX_TOKENS) for _ in range(prefixes)]
    weights = 1 / np.arange(1, prefixes + 1) ** 0.7
    wanted = random.choice(prefixes, REQUESTS, p=weights / weights.sum())
    return arrivals(
        random,
        REQUESTS,
        200.0,
        lambda number: (prompt(random, prompts[wanted[number]], 64), int(random.integers(8, 64))),
    )


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("prefixes", "gain", "share", "worst"), [(24, 1.9, 0.99, 1.25), (32, 2.0, 0.95, 1.2)]
)
def test_shared_prefixes_are_found_without_loss_of_balance(seed, prefixes, gain, share, worst):
    """Prefixes are computed little more than once each, and found as often as that lets them be."""
    asked = shared_prefixes(seed, prefixes)
    ours, in_turn = (
        ModelCluster(routing, [1.0] * 4, 0.0, 600).run(asked) for routing in ("prefix", "round_robin")
    )
    assert ours.hit_tokens >= gain * in_turn.hit_tokens and ours.late() < in_turn.late()
    assert ours.hit_tokens >= share * (REQUESTS - prefixes) * PREFIX_TOKENS
    assert max(ours.computed) <= worst * np.mean(ours.computed)


@pytest.mark.parametrize("delay", [0.0, 1.0])
def test_a_herd_with_a_new_prefix_goes_to_two_replicas_at_most(delay):
    random = np.random.default_rng(1)
    prefix = prompt(random, [], 2000)
    asked = [Arrival(0.0, prompt(random, prefix, 20), 4) for _ in range(100)]
    cluster = ModelCluster("prefix", [1.0] * 4, delay).run(asked)
    used = set(cluster.places)
    own = sum(len(one.prompt) for one in asked) - 100 * 2000
    assert len(used) <= 2
    assert sum(cluster.computed) <= len(used) * 2000 + 100 * (36 + 4) + own


@pytest.mark.parametrize("delay", [0.0, 1.0])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_burst_of_different_prompts_is_shared_out_evenly(seed, delay):
    random = np.random.default_rng(seed)
    asked = [
        Arrival(0.01 * number / 64, prompt(random, [], int(random.integers(100, 900))), 4)
        for number in range(64)
    ]
    cluster = ModelCluster("prefix", [1.0] * 4, delay).run(asked)
    assert max(cluster.computed) <= 1.2 * np.mean(cluster.computed)


@pytest.mark.parametrize("seed", SEEDS)
def test_loads_that_are_a_second_late_are_no_reason_for_more_than_30_percent(seed):
    random = np.random.default_rng(seed)
    asked = arrivals(random, 400, 60.0, lambda _: (prompt(random, [], int(random.integers(100, 900))), 8))
    cluster = ModelCluster("prefix", [1.0] * 4, 1.0).run(asked)
    assert max(cluster.computed) <= 1.3 * np.mean(cluster.computed)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_replica_that_is_half_as_fast_gets_about_half(seed):
    random = np.random.default_rng(seed)
    asked = arrivals(random, 800, 68.0, lambda _: (prompt(random, [], int(random.integers(200, 800))), 8))
    cluster = ModelCluster("prefix", [1.0, 1.0, 1.0, 0.5]).run(asked)
    *others, slow = cluster.computed
    assert 0.4 <= slow / np.mean(others) <= 0.6


def test_long_outputs_do_not_all_gather_at_their_prefix():
    """A prefix of 2,000 tokens is soon worth less than a replica that has nothing to do."""
    random = np.random.default_rng(2)
    prefix = prompt(random, [], 2000)
    asked = arrivals(random, 600, 80.0, lambda _: (prompt(random, prefix, 20), 300))
    cluster = ModelCluster("prefix", [1.0] * 4).run(asked)
    assert max(cluster.computed) <= 1.3 * np.mean(cluster.computed)
