"""Groups of layers that share blocks."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pageant.models.layer_groups import LayerGroups

GEMMA3 = [None if index % 6 == 5 else 1024 for index in range(34)]


def test_layers_that_are_alike_are_one_group():
    for windows in ([None] * 3, [64] * 3):
        groups = LayerGroups.by_window(windows, 4096)
        assert (groups.windows, groups.of_layer, groups.places) == ((windows[0],), (0, 0, 0), (0, 1, 2))


def test_a_window_that_no_request_outgrows_is_none():
    assert LayerGroups.by_window(GEMMA3, 1024).windows == (None,)
    assert LayerGroups.by_window([64, 64], 64).windows == (None,)


def test_in_one_group_what_the_furthest_layer_reaches_counts():
    assert LayerGroups.one(GEMMA3).windows == (None,)
    assert LayerGroups.one([64, 32]).windows == (64,)
    assert LayerGroups.one([64, 32, 128], max_model_len=128).windows == (None,)


def test_gemma_3_has_a_group_without_a_window_and_as_many_with_one_as_it_takes():
    groups = LayerGroups.by_window(GEMMA3, 8192)
    assert groups.windows == (None, *[1024] * 6)
    assert groups.layers_per_block == 5


def test_one_layer_that_is_unlike_many_others_makes_no_group_of_each_of_them():
    groups = LayerGroups.by_window([None, *[64] * 40], 8192)
    assert len(groups.windows) <= 12
    assert groups.windows[0] is None


def test_windows_of_too_many_kinds_are_one_group():
    assert LayerGroups.by_window([100 * kind for kind in range(1, 14)], 32768).windows == (1300,)


def test_what_lies_in_the_same_blocks_is_kept_as_long_as_anybody_reaches_it():
    assert LayerGroups.one([64, 32], beside=[512]).windows == (512,)
    assert LayerGroups.one([64, 32], beside=[None]).windows == (None,)
    assert LayerGroups.one([64, None], beside=[]).of_layer == (0, 0)


@given(st.lists(st.sampled_from([None, 64, 128, 512]), min_size=1, max_size=80))
def test_every_layer_has_a_place_of_its_own_in_a_group_of_its_window(windows):
    groups = LayerGroups.by_window(windows, 256)
    served = [window if window in (64, 128) else None for window in windows]
    assert [groups.windows[group] for group in groups.of_layer] == served
    assert max(Counter(zip(groups.of_layer, groups.places, strict=True)).values()) == 1
    assert set(groups.of_layer) == set(range(len(groups.windows)))
    assert list(groups.windows) == sorted(groups.windows, key=lambda window: -(window or 1024))
    assert len(groups.windows) <= 12


def test_each_layer_is_given_its_groups_step_and_its_own_cache():
    groups = LayerGroups.by_window([64, None, 64], 256)
    assert list(groups.in_order(["full", "first", "second"], ["cache"])) == [
        ("first", "cache"),
        ("full", "cache"),
        ("second", "cache"),
    ]
    with pytest.raises(AssertionError, match="1 batches for 3 groups"):
        groups.in_order(["full"], ["cache"])
