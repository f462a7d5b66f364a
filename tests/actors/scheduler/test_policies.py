"""Policies by name."""

from types import SimpleNamespace

import pytest

from pageant.actors.scheduler.policies import FirstComeFirstServed, make_policy
from pageant.protocol.errors import TopologyError


def test_first_come_first_served_goes_by_arrival_and_the_last_gives_way():
    policy = make_policy("fcfs")
    early, late = SimpleNamespace(arrived_at=1.0), SimpleNamespace(arrived_at=2.0)
    assert policy.order(early) < policy.order(late)
    assert policy.victim([early, late]) is late


def test_ones_own_is_named_by_module_and_class():
    name = f"{FirstComeFirstServed.__module__}:FirstComeFirstServed"
    assert isinstance(make_policy(name), FirstComeFirstServed)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("fairest", "no policy 'fairest'; expected fcfs, priority, shortest, fair, deadline or module:Class"),
        ("nowhere.policies:Mine", "there is no module 'nowhere'"),
        ("collections:OrderedDict", "has no method 'order'"),
    ],
)
def test_a_wrong_name_says_where_and_what_is_expected(name, message):
    with pytest.raises(TopologyError, match=message) as caught:
        make_policy(name)
    assert "actors.scheduler.options.policy" in str(caught.value)
