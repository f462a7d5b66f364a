"""Replicas by columns: the same decisions as a plain account of each, and the same replicas when they are asked for."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pageant.actors.router.candidates import Candidate, Candidates
from pageant.actors.router.policies import BUSY_SECONDS, EQUAL, LeastLoaded, PrefixAware, RoutedRequest

REQUEST = RoutedRequest(num_tokens=256, max_tokens=0, tenant="", prefix=b"p")
# Sums of few such numbers are exact, in any order.
SECONDS, SHARES = st.sampled_from([2**-12, 2**-11, 2**-10]), st.sampled_from([0.0, 0.25, 0.5, 1.5])


@st.composite
def replicas(draw) -> list[Candidate]:
    return [
        Candidate(
            name=f"replica-{number}/",
            cached_tokens=16 * draw(st.integers(0, 16)),
            waiting_tokens=draw(st.integers(0, 1000)),
            running=draw(st.integers(0, 8)),
            requests=draw(st.integers(0, 3)),
            seconds_per_token=draw(SECONDS),
            output_tokens=64.0,
            busy=draw(SHARES),
        )
        for number in range(draw(st.integers(1, 8)))
    ]


@given(replicas())
def test_each_replica_is_what_it_was(some):
    columns = Candidates.of(some)
    assert [*columns] == some and columns[:2] == some[:2] and columns[-1] == some[-1]
    assert columns.wait.tolist() == [one.wait for one in some]
    assert Candidates.of(columns) is columns
    assert [*columns.where(columns.running > 2)] == [one for one in some if one.running > 2]


@given(replicas())
def test_the_cheapest_is_chosen_and_of_equal_ones_that_with_most_of_the_prompt(some):
    usual = sum(one.seconds_per_token for one in some) / len(some)

    def cost(one: Candidate) -> float:
        work = (REQUEST.num_tokens - one.cached_tokens) * (one.seconds_per_token + usual)
        return one.wait + BUSY_SECONDS * one.busy + work

    bound = min(map(cost, some)) * EQUAL
    equal = [one for one in some if cost(one) <= bound]
    best = max((one.cached_tokens, -one.wait) for one in equal)
    chosen = PrefixAware().choose(REQUEST, some)
    assert chosen in equal and (chosen.cached_tokens, -chosen.wait) == best
    assert PrefixAware().choose(REQUEST, some[::-1]) == chosen, (
        "the order of replicas is none of its business"
    )


@given(replicas())
def test_the_least_laden_is_the_first_with_the_shortest_wait_and_fewest_requests(some):
    assert LeastLoaded().choose(REQUEST, some) == min(some, key=lambda one: (one.wait, one.requests))
