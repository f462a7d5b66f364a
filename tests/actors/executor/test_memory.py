"""How many blocks there is room for."""

import pytest

from pageant.actors.executor.memory import TooLittleMemory, available_bytes, choose_num_blocks


def choose(budget, wanted=None, **changes):
    sizes = {"block_bytes": 100, "block_size": 16, "max_model_len": 160, "max_num_seqs": 4}
    return choose_num_blocks(wanted, **(sizes | changes), budget_bytes=budget)


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


def test_every_group_of_layers_needs_blocks_of_its_own():
    assert choose(2550, num_groups=2) == 25
    assert choose(10**9, num_groups=2) == 80
    with pytest.raises(TooLittleMemory, match="lower max_model_len to 144 or less"):
        choose(1999, num_groups=2)


def test_a_number_that_is_asked_for_is_taken_if_one_request_fits():
    assert choose(None, 30, num_groups=3) == 30
    with pytest.raises(
        TooLittleMemory, match=r"num_blocks is 29.* in one of 3 groups of layers; .* 160 needs 30"
    ):
        choose(None, 29, num_groups=3)
