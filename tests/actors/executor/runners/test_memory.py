"""The size of the KV cache."""

import pytest

from pageant.actors.executor.runners import memory
from pageant.actors.executor.runners.memory import (
    PoolSize,
    TooLittleMemory,
    available_bytes,
    choose_pool_size,
    host_budget,
)

GIB = 1 << 30


def choose(budget, wanted=None, **changes):
    sizes = {"block_bytes": 100, "block_size": 16, "max_model_len": 160, "max_num_seqs": 4}
    return choose_pool_size(wanted, **(sizes | changes), budget_bytes=budget)


def blocks(*arguments, **changes):
    return choose(*arguments, **changes).num_blocks


def test_the_budget_is_used_up_to_what_the_longest_requests_need():
    assert choose(2550) == PoolSize(25, 160)
    assert blocks(10**9) == 40
    assert choose(10**9, max_model_len=161) == PoolSize(44, 161)


def test_too_little_for_one_request_says_what_would_help():
    with pytest.raises(TooLittleMemory, match="lower max_model_len to 144 or less"):
        choose(999)


def test_without_a_budget_a_share_of_what_is_free_is_taken():
    assert available_bytes() > 0
    assert blocks(None) == 40


@pytest.mark.parametrize(
    ("longest", "budget"),
    [
        (1 * GIB, 5 * GIB),  # fits into a quarter
        (16 * GIB, 16 * GIB),  # takes what it needs
        (40 * GIB, 17.5 * GIB),  # leaves an eighth
    ],
)
def test_a_full_length_request_may_take_more_than_a_share_up_to_a_margin(monkeypatch, longest, budget):
    monkeypatch.setattr(memory, "available_bytes", lambda: 20 * GIB)
    assert host_budget(longest) == budget


def test_a_small_host_keeps_a_gibibyte_beside_the_kv_cache(monkeypatch):
    monkeypatch.setattr(memory, "available_bytes", lambda: 3 * GIB)
    assert host_budget(16 * GIB) == 2 * GIB
    monkeypatch.setattr(memory, "available_bytes", lambda: GIB)
    assert host_budget(16 * GIB) == GIB // 4


@pytest.mark.parametrize(
    ("budget", "wanted", "groups", "there"),
    [
        (999, None, 1, r"0 MiB are there"),
        (None, 9, 1, r"num_blocks is 9, of 16 tokens each"),
        (1999, None, 2, r"0 MiB are there"),
    ],
)
def test_a_length_that_nobody_asked_for_is_what_fits_and_one_line_says_so(
    caplog, budget, wanted, groups, there
):
    size = choose(budget, wanted, windows=(None,) * groups, may_shorten=True)
    assert size.max_model_len == 144
    (record,) = caplog.records
    assert record.message.startswith("max_model_len 144 of 160: ")
    assert there in record.message and "raise kv_cache_memory" in record.message


def test_a_block_for_each_group_is_the_least():
    with pytest.raises(TooLittleMemory, match="lower max_model_len to 0"):
        choose(199, windows=(None,) * 2, may_shorten=True)


def test_every_group_of_layers_needs_blocks_of_its_own():
    assert blocks(2550, windows=(None,) * 2) == 25
    assert blocks(10**9, windows=(None,) * 2) == 80
    with pytest.raises(TooLittleMemory, match="lower max_model_len to 144 or less"):
        choose(1999, windows=(None,) * 2)


def test_a_number_that_is_asked_for_is_taken_if_one_request_fits():
    assert blocks(None, 30, windows=(None,) * 3) == 30
    with pytest.raises(
        TooLittleMemory, match=r"num_blocks is 29.* in one of 3 groups of layers.* 160 needs 30"
    ):
        choose(None, 29, windows=(None,) * 3)


def test_executors_that_share_a_host_have_room_for_a_full_length_request_each(monkeypatch):
    monkeypatch.setattr(memory, "available_bytes", lambda: 10 * GIB)
    sizes = {"block_bytes": GIB // 10, "max_num_seqs": 1}  # of 10 blocks, a GiB, for one request
    assert blocks(None, **sizes, num_near=8) == 10
    with pytest.raises(TooLittleMemory):
        blocks(None, **sizes, num_near=9)
