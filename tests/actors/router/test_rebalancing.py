"""Requests that move to even out the KV memory that replicas need."""

from __future__ import annotations

import pytest

from pageant.actors.router.core import RouterCore
from pageant.actors.router.policies import make_policy
from pageant.actors.router.rebalancing import REST_SECONDS, MemoryUse, MoveAdvice, Rebalancer
from pageant.protocol.arrays import int64
from pageant.protocol.routing import Load


def uses(*shares: float, num_tokens: int = 1000) -> list[MemoryUse]:
    return [MemoryUse(f"replica-{number}/", share, num_tokens) for number, share in enumerate(shares)]


def test_half_the_difference_moves_from_where_most_is_needed_to_where_least_is():
    advice = Rebalancer().advise(uses(0.5, 1.2, 0.25, 0.95), 0.0)
    assert advice == MoveAdvice("replica-1/", "replica-2/", 475)


@pytest.mark.parametrize("shares", [(0.89, 0.1), (1.3, 1.2), (0.95, 0.8), (1.5,), ()])
def test_nothing_moves_without_need_or_without_room_elsewhere(shares):
    assert Rebalancer().advise(uses(*shares), 0.0) is None


def test_a_replica_whose_memory_is_not_known_takes_no_part():
    assert Rebalancer().advise([*uses(1.5), MemoryUse("replica-1/", 0.0, 0)], 0.0) is None


def test_replicas_rest_until_their_loads_show_the_move():
    rebalancer = Rebalancer()
    assert rebalancer.advise(uses(1.2, 0.1, 0.2), 5.0) is not None
    assert rebalancer.advise(uses(1.2, 0.1, 0.2), 5.0 + REST_SECONDS / 2) is None
    assert rebalancer.advise(uses(0.7, 0.1, 1.0), 5.0 + REST_SECONDS / 2) is None
    assert rebalancer.advise(uses(1.2, 0.1, 0.2), 5.0 + REST_SECONDS) is not None


class Replicas:
    """The router's core, with replicas whose loads say how much memory they need."""

    def __init__(self, **options) -> None:
        self.core = RouterCore(make_policy("least"), **options)
        for number in range(3):
            self.core.scheduler_up(f"replica-{number}/", 1, only_prefills=number == 2)

    def load(self, *memory: float) -> None:
        for number, share in enumerate(memory):
            load = Load(
                seen=int64(),
                waiting_tokens=0,
                running=1,
                waiting=0,
                seconds_per_token=0.001,
                memory=share,
                memory_tokens=1000,
            )
            self.core.loaded(f"replica-{number}/", 1, load)


def test_the_core_goes_by_the_loads_of_replicas_that_go_on_with_outputs():
    replicas = Replicas()
    assert replicas.core.rebalance(0.0) is None, "nothing is known yet"
    replicas.load(1.0, 0.4, 0.0)
    assert replicas.core.rebalance(0.0) == MoveAdvice("replica-0/", "replica-1/", 300)


@pytest.mark.parametrize("why", ["the target drains", "the source is down", "it is switched off"])
def test_no_advice_is_given_where_nothing_can_or_may_move(why):
    replicas = Replicas(rebalance=why != "it is switched off")
    replicas.load(1.0, 0.4)
    if why == "the target drains":
        replicas.core.draining("replica-1/", is_draining=True)
    if why == "the source is down":
        replicas.core.scheduler_down("replica-0/", 1)
    assert replicas.core.rebalance(0.0) is None
