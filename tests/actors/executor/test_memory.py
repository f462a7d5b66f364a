"""How many blocks there is room for."""

import pytest

from pageant.actors.executor.memory import TooLittleMemory, available_bytes, choose_num_blocks, parse_bytes


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


def choose(budget, **changes):
    sizes = {"block_bytes": 100, "block_size": 16, "max_model_len": 160, "max_num_seqs": 4}
    return choose_num_blocks(**(sizes | changes), budget_bytes=budget)


def test_the_budget_is_used_up_to_what_the_longest_requests_need():
    assert choose(2550) == 25
    assert choose(10**9) == 40
    assert choose(10**9, max_model_len=161) == 44


def test_too_little_for_one_request_says_what_would_help():
    with pytest.raises(TooLittleMemory, match="lower max_model_len to 144 or less"):
        choose(999)


def test_without_a_budget_a_share_of_what_is_free_is_taken():
    assert available_bytes() > 0
    assert choose(None) == 40
