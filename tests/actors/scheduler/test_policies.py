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


def test_a_fair_share_lists_each_tenant_once_however_often_its_prompts_are_put_back():
    policy = make_policy("fair")
    one, other = (SimpleNamespace(tenant=name, arrived_at=0.0, is_resumed=False) for name in "ab")
    policy.arrived(one)
    policy.arrived(other)
    policy.served("a", 50, 0)
    for _ in range(100):
        for tenant in "ab":
            policy.served(tenant, 30, 0)
            policy.served(tenant, -30, 0)
    assert (policy.rank("a"), policy.rank("b")) == (50, 0)
    assert len(policy._ranks) == 2
    policy.left(other)
    assert policy._least() == 50, "who comes now is lifted to who is there"


def test_what_a_tenant_that_is_gone_gets_back_is_no_credit():
    policy = make_policy("fair")
    here, gone = (SimpleNamespace(tenant=name, arrived_at=0.0, is_resumed=False) for name in "ab")
    policy.arrived(here)
    policy.arrived(gone)
    policy.served("a", 100, 0)
    policy.served("b", 40, 0)
    policy.left(gone)
    policy.served("b", -40, 0)
    policy.served("b", -40, 0)
    policy.arrived(gone)
    assert policy.rank("b") == 100


def test_a_fair_share_keeps_one_entry_of_each_idle_tenant_beside_an_open_one_with_less():
    policy = make_policy("fair")
    patient = SimpleNamespace(tenant="patient", arrived_at=0.0, is_resumed=False)
    policy.arrived(patient)
    for turn in range(100):
        request = SimpleNamespace(tenant=f"tenant-{turn % 2}", arrived_at=0.0, is_resumed=False)
        policy.arrived(request)
        policy.served(request.tenant, 10, 0)
        policy.left(request)
    assert len(policy._idle) == 2
    assert policy.rank("tenant-0") == 500
    policy.served("patient", 1000, 0)
    policy.left(patient)
    assert not policy._idle and policy.rank("tenant-0") == 0
