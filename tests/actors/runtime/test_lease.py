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
    leases.grant("quiet", 3, 0.0, starting=False)
    leases.grant("loud", 1, 0.0, starting=False)
    assert looked(leases, 4.0) == []
    leases.grant("loud", 1, 4.0, starting=False, number=1)
    assert looked(leases, 9.0) == [(6.0, "quiet", 3)]
    leases.end("loud")
    assert leases.look_at is None


def test_where_something_starts_it_takes_longer_until_a_shorter_lease_has_been_heard_of():
    leases = Leases(TERMS)
    assert leases.grant("deaf", 1, 0.0, starting=True) == 30.0
    assert leases.grant("deaf", 1, 2.0, starting=False, number=1) == 5.0
    leases.grant("hears", 1, 0.0, starting=True)
    leases.grant("hears", 1, 2.0, starting=False, number=1)
    leases.grant("hears", 1, 3.0, starting=False, number=2, taken=1)
    assert looked(leases, 60.0) == [(9.0, "hears", 1), (31.0, "deaf", 1)]


def test_another_life_has_a_lease_of_its_own():
    leases = Leases(TERMS)
    leases.grant("a", 1, 0.0, starting=True)
    leases.grant("a", 2, 1.0, starting=False)
    assert leases.until("a") == 7.0


def test_a_root_that_was_held_up_itself_gives_that_time_back():
    leases = Leases(TERMS)
    leases.grant("a", 1, 0.0, starting=False)
    assert leases.lapsed(30.0) == []  # it should have looked at 1
    assert looked(leases, 40.0, since=30.0) == [(35.0, "a", 1)]


@given(st.data())
def test_a_node_ends_before_the_root_replaces_it_whatever_is_lost_or_late(data):
    leases, tenure = Leases(TERMS), Tenure(0.0)
    joined = data.draw(DELAYS)
    tenure.granted(0, leases.grant("a", 1, joined, starting=True), TERMS.heartbeat)
    now = joined + data.draw(DELAYS)
    for _ in range(data.draw(st.integers(0, 20))):
        now += tenure.next_in(now)
        if tenure.lapsed(now):
            break
        number, taken = tenure.ask(now), tenure.taken
        if data.draw(st.booleans()):  # it reaches the root
            starting = data.draw(st.booleans())
            heard_at = now + data.draw(DELAYS)
            seconds = leases.grant("a", 1, heard_at, starting=starting, number=number, taken=taken)
            if data.draw(st.booleans()):  # and its answer comes back
                tenure.granted(number, seconds, TERMS.heartbeat)
    assert tenure.lapsed(leases.until("a"))


def test_a_node_asks_once_per_heartbeat_and_ends_when_its_lease_does():
    tenure = Tenure(0.0)
    tenure.granted(0, 5.0, 0.5)
    assert [tenure.next_in(at) for at in (0.0, 4.75, 5.0, 30.0)] == [0.5, 0.25, 0.5, 0.5]
    assert [tenure.lapsed(at) for at in (4.9, 5.0)] == [False, True]
    tenure.granted(tenure.ask(2.0), 5.0, 0.5)
    tenure.granted(77, 100.0, 0.5)  # which it has not asked for
    assert [tenure.lapsed(at) for at in (6.9, 7.0)] == [False, True]
