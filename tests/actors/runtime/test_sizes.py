"""Sizes in bytes."""

import pytest

from pageant.actors.runtime.sizes import parse_bytes


@pytest.mark.parametrize(
    ("text", "number"),
    [("4GiB", 4 * 2**30), ("1.5 MiB", 3 * 2**19), ("100", 100), ("2KB", 2000), (" 1GB ", 10**9)],
)
def test_sizes_are_read_with_their_units(text, number):
    assert parse_bytes(text) == number


@pytest.mark.parametrize("text", ["", "GiB", "4 gib", "4GiBs", "-1GiB", "1e9", "٤GiB x"])
def test_what_is_no_size_is_refused_with_the_known_units(text):
    with pytest.raises(ValueError, match="KiB, MiB, GiB"):
        parse_bytes(text)


def test_a_number_is_bytes():
    assert parse_bytes(4096) == 4096
