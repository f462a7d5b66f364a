"""Slots below the device: who is in them, who gives route, and to where."""

import pytest

from pageant.actors.blocks.store import Store


def test_what_was_used_longest_ago_gives_way():
    host = Store("host", 2)
    first, second = host.put(b"a"), host.put(b"b")
    assert {first, second} == {0, 1}
    assert host.pin(b"a") == first
    host.unpin()
    assert host.put(b"c") == second
    assert (b"b" in host, b"a" in host, host.lost) == (False, True, 1)
    host.check_integrity()


def test_what_is_pinned_stays_until_it_is_not():
    host = Store("host", 1)
    slot = host.put(b"a")
    assert host.pin(b"a") == slot == host.pin(b"a")
    assert host.put(b"b") is None
    assert (b"a" in host, len(host)) == (True, 1)
    host.unpin()
    assert host.put(b"b") == slot
    assert host.pin(b"a") is None
    host.check_integrity()


def test_what_is_forgotten_leaves_its_slot():
    host = Store("host", 1)
    host.put(b"a")
    host.forget(b"a")
    host.forget(b"never")
    assert (len(host), host.put(b"b"), host.lost) == (0, 0, 0)


def test_a_name_that_is_there_is_not_put_again():
    host = Store("host", 2)
    host.put(b"a")
    with pytest.raises(AssertionError, match="twice"):
        host.put(b"a")


def test_a_lost_slot_is_noticed():
    host = Store("host", 2)
    host.put(b"a")
    host._slots.clear()
    with pytest.raises(AssertionError, match="lost"):
        host.check_integrity()


def below(upper=2, lower=2):
    disk = Store("disk", lower, 100)
    return Store("host", upper, lower=disk), disk


def test_what_has_been_spilled_is_given_up_without_a_loss():
    host, disk = below()
    first, _ = host.put(b"a"), host.put(b"b")
    assert host.num_spare == 0
    assert host.spill() == (b"a", first, 100)
    assert host.num_spare == 1
    host.put(b"c")
    assert (b"a" in host, b"a" in disk, host.lost) == (False, True, 0)
    host.put(b"d")
    assert (b"b" in disk, host.lost) == (False, 1)
    host.check_integrity()


def test_what_was_used_last_is_spilled_last():
    host, _ = below()
    host.put(b"a")
    host.put(b"b")
    host.pin(b"a")
    host.unpin()
    assert [host.spill()[0] for _ in range(2)] == [b"b", b"a"]
    assert host.spill() is None, "all is kept below"


def test_what_is_lost_below_is_to_be_spilled_again():
    host, disk = below(upper=3, lower=1)
    host.put(b"a")
    host.spill()
    host.put(b"b")
    assert host.spill()[0] == b"b"
    assert b"a" not in disk
    host.check_integrity()
    assert host.num_spare == 2
    assert host.spill()[0] == b"a"


def test_nothing_is_spilled_over_what_is_being_read():
    host, disk = below(lower=1)
    host.put(b"a")
    host.spill()
    disk.pin(b"a")
    host.put(b"b")
    assert host.spill() is None
    host.check_integrity()


def test_who_listens_hears_of_every_name_that_comes_and_goes():
    heard = []
    host = Store("host", 1)
    host.listener = lambda key, block: heard.append((*key, block is not None))
    host.put(b"a")
    host.put(b"b")
    host.forget(b"b")
    host.forget(b"b")
    assert heard == [("host", b"a", True), ("host", b"a", False), ("host", b"b", True), ("host", b"b", False)]
