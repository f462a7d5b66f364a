"""The host's slots: who is in them, and who gives way."""

import pytest

from pageant.actors.blocks.host import HostTier


def test_what_was_used_longest_ago_gives_way():
    host = HostTier(2)
    first, second = host.put(b"a"), host.put(b"b")
    assert {first, second} == {0, 1}
    assert host.pin(b"a") == first
    host.unpin()
    assert host.put(b"c") == second
    assert (b"b" in host, b"a" in host, host.lost) == (False, True, 1)
    host.check_integrity()


def test_what_is_pinned_stays_until_it_is_not():
    host = HostTier(1)
    slot = host.put(b"a")
    assert host.pin(b"a") == slot == host.pin(b"a")
    assert host.put(b"b") is None
    assert (b"a" in host, len(host)) == (True, 1)
    host.unpin()
    assert host.put(b"b") == slot
    assert host.pin(b"a") is None
    host.check_integrity()


def test_what_is_forgotten_leaves_its_slot():
    host = HostTier(1)
    host.put(b"a")
    host.forget(b"a")
    host.forget(b"never")
    assert (len(host), host.put(b"b"), host.lost) == (0, 0, 0)


def test_a_name_that_is_there_is_not_put_again():
    host = HostTier(2)
    host.put(b"a")
    with pytest.raises(AssertionError, match="twice"):
        host.put(b"a")


def test_a_lost_slot_is_noticed():
    host = HostTier(2)
    host.put(b"a")
    host._slots.clear()
    with pytest.raises(AssertionError, match="lost"):
        host.check_integrity()
