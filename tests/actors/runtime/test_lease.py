"""Leases, as the root and as a node count them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pageant.actors.runtime.lease import Leases, LeaseTerms, Tenure

TERMS = LeaseTerms(heartbeat=1.0, suspicion=5.0)
DELAYS = st.floats(0.0, 3.0)


def looked(leases: Leases, until: float, since: float = 0.0) -> list[tuple[float, str, int]]:
    """Looks once per heartbeat; who lapsed, and when that was noticed."""
    found, now = [], since
    while (due := leases.look_at) is not None and due <= until:
        now = max(now, due)
        found += [(now, *lapsed) for lapsed in leases.lapsed(now)]
    return found


def test_a_node_that_is_not_heard_of_lapses_once_and_others_do_not():
    leases = Leases(TERMS)
    leases.grant("quiet", 3, 0.0, starting=False, fence=True)
    leases.grant("loud", 1, 0.0, starting=False, fence=True)
    assert looked(leases, 4.0) == []
    leases.grant("loud", 1, 4.0, starting=False, fence=True)
    assert looked(leases, 9.0) == [(6.0, "quiet", 3)]
    leases.end("loud")
    assert leases.look_at is None


def test_where_something_starts_it_takes_longer():
    leases = Leases(TERMS)
    leases.grant("b", 1, 0.0, starting=True, fence=False)
    leases.grant("b", 1, 2.0, starting=False, fence=False)  # which it may not hear
    assert leases.grant("a", 1, 0.0, starting=True, fence=True) == 30.0
    assert looked(leases, 60.0) == [(31.0, "b", 1), (31.0, "a", 1)]


def test_a_root_that_was_held_up_itself_gives_that_time_back():
    leases = Leases(TERMS)
    leases.grant("a", 1, 0.0, starting=False, fence=True)
    assert leases.lapsed(30.0) == []  # it should have looked at 1
    assert looked(leases, 40.0, since=30.0) == [(35.0, "a", 1)]


@given(st.data())
def test_a_node_ends_before_the_root_replaces_it_whatever_is_lost_or_late(data):
    leases, tenure = Leases(TERMS), Tenure(0.0)
    joined = data.draw(DELAYS)
    tenure.granted(0, leases.grant("a", 1, joined, starting=True, fence=False), TERMS.heartbeat)
    now = joined + data.draw(DELAYS)
    for _ in range(data.draw(st.integers(0, 20))):
        now += tenure.next_in(now)
        if tenure.lapsed(now):
            break
        number = tenure.ask(now)
        if data.draw(st.booleans()):  # it reaches the root
            starting = data.draw(st.booleans())
            seconds = leases.grant("a", 1, now + data.draw(DELAYS), starting=starting, fence=False)
            if data.draw(st.booleans()):  # and its answer comes back
                tenure.granted(number, seconds, TERMS.heartbeat)
    assert tenure.lapsed(leases._until["a"][1])


def test_a_node_asks_once_per_heartbeat_and_ends_when_its_lease_does():
    tenure = Tenure(0.0)
    tenure.granted(0, 5.0, 0.5)
    assert [tenure.next_in(at) for at in (0.0, 4.75, 5.0, 30.0)] == [0.5, 0.25, 0.5, 0.5]
    assert [tenure.lapsed(at) for at in (4.9, 5.0)] == [False, True]
    tenure.granted(tenure.ask(2.0), 5.0, 0.5)
    tenure.granted(77, 100.0, 0.5)  # which it has not asked for
    assert [tenure.lapsed(at) for at in (6.9, 7.0)] == [False, True]
