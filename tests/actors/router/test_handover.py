"""Whether a prompt is computed by another replica than its output: both ways cost seconds."""

from __future__ import annotations

import pytest

from pageant.actors.router.core import RouterCore
from pageant.actors.router.handover import is_apart
from pageant.actors.router.policies import Candidate, RoutedRequest, make_policy
from pageant.protocol.arrays import int32
from pageant.protocol.routing import Route


def request(num_tokens: int = 1000) -> RoutedRequest:
    return RoutedRequest(num_tokens=num_tokens, max_tokens=0, tenant="", prefix=b"")


def candidate(name: str, *, cached: int = 0, waiting: int = 0, running: int = 0) -> Candidate:
    return Candidate(
        name=name,
        cached_tokens=cached,
        waiting_tokens=waiting,
        running=running,
        requests=0,
        seconds_per_token=1e-3,
    )


@pytest.mark.parametrize(
    ("first", "place", "apart"),
    [
        ({}, {}, False),  # nobody is delayed
        ({}, {"running": 4}, True),
        ({"waiting": 8000}, {"running": 4}, False),  # the wait is longer than the delay
        ({}, {"running": 4, "cached": 992}, False),  # less than a block is left
        ({}, {"waiting": 2000}, True),
        ({}, {"running": 1, "cached": 900}, False),  # most of it is there
    ],
)
def test_a_prompt_is_computed_apart_where_that_is_quicker_for_all(first, place, apart):
    found = is_apart("auto", request(), candidate("p/", **first), candidate("d/", **place), 16)
    assert found is apart


def test_the_operator_decides_otherwise():
    first, place = candidate("p/", waiting=10**6), candidate("d/", running=9)
    assert is_apart("always", request(), first, place, 16)
    assert not is_apart("always", request(16), first, place, 16)
    assert not is_apart("never", request(), candidate("p/"), place, 16)


def route(core: RouterCore, *, text_tokens: int = 64, max_tokens: int = 0):
    asked = Route(
        model="",
        token_ids=int32(range(64)),
        lengths=int32([64]),
        max_tokens=int32([max_tokens]),
        salts=(None,),
        extra_keys=((),),
        adapters=(None,),
        tenants=("",),
        text_tokens=int32([text_tokens]),
    )
    return core.route(asked, 0.0)


def test_prompts_go_to_replicas_that_are_for_them_and_outputs_to_others():
    core = RouterCore(make_policy("least"), handover="always")
    core.scheduler_up("replica-0/", 1, only_prefills=True)
    assert route(core).places == ("replica-0/",), "nobody else is there"
    assert route(core).via == ()
    core.scheduler_up("replica-1/", 1)
    found = route(core)
    assert (found.places, found.via) == (("replica-1/",), ("replica-0/",))
    core.scheduler_down("replica-0/", 1)
    assert (route(core).places, route(core).via) == (("replica-1/",), ())


def test_requests_that_gain_nothing_are_not_handed_over():
    core = RouterCore(make_policy("least"), handover="always")
    core.scheduler_up("replica-0/", 1, only_prefills=True)
    core.scheduler_up("replica-1/", 1)
    assert route(core, text_tokens=63).via == (), "their blocks are in no store"
    assert route(core, max_tokens=1).via == (), "they end with their first token"
    assert route(core).via == ("replica-0/",)
