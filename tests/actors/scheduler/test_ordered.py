"""Requests by key."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pageant.actors.scheduler import ordered
from pageant.actors.scheduler.ordered import Ordered


def request(key):
    """Make a request. Those of the same third have keys that begin alike."""
    return SimpleNamespace(key=(float(key // 3), key), serial=key)


@pytest.fixture(autouse=True)
def small_segments(monkeypatch):
    monkeypatch.setattr(ordered, "SEGMENT", 3)


@given(st.lists(st.tuples(st.integers(0, 40), st.sampled_from(["add", "remove", "pop"])), max_size=120))
def test_it_is_what_a_sorted_list_is(operations):
    mine, right = Ordered(), {}
    for key, what in operations:
        if what == "add" and key not in right:
            right[key] = request(key)
            mine.add(right[key])
        elif what == "remove" and key in right:
            mine.remove(right.pop(key))
        elif what == "pop" and right:
            assert mine.first() is right[min(right)]
            assert mine.pop() is right.pop(min(right))
        assert bool(mine) == bool(right)
        assert [entry[1].serial for segment in mine._segments for entry in segment.entries] == sorted(right)
        assert mine._lasts == [segment.entries[-1][0] for segment in mine._segments]
        assert all(
            list(segment.firsts) == [key[0] for key, _ in segment.entries] for segment in mine._segments
        )
        assert all(0 < len(segment.entries) <= 6 for segment in mine._segments)


def test_a_request_that_is_not_there_is_noticed():
    mine = Ordered()
    mine.add(request(1))
    with pytest.raises(AssertionError, match="does not stand where its key says"):
        mine.remove(request(1))
