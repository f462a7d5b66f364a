"""Sequences with windows hold what these reach, and begin wherever that is cached."""

from __future__ import annotations

import random
from functools import partial

import pytest

from pageant.actors.blocks.allocation import Allocation
from pageant.actors.blocks.costs import MoveCosts
from pageant.actors.blocks.groups import Groups
from pageant.actors.blocks.pool import BlockPool
from pageant.actors.blocks.tiers import Tiers
from pageant.protocol.arrays import int32
from pageant.protocol.block_names import (
    block_names,
    full_blocks,
    is_of_first_group,
    name_in_group,
    root_name,
)
from tests.actors.blocks.test_allocation import Manager, granted


@pytest.mark.parametrize("size", [1, 2, 4, 5, 9])
def test_the_first_block_is_that_of_the_first_token_which_is_attended_over(size):
    groups = Groups((None, size), 4)
    for position in range(30):
        attended = [at for at in range(position + 1) if at > position - size]
        assert (groups.first(0, position), groups.first(1, position)) == (0, attended[0] // 4)


@pytest.mark.parametrize("size", [1, 2, 4, 5, 9])
def test_a_block_is_given_back_from_the_first_token_on_that_does_not_reach_it(size):
    groups = Groups((size,), 4)
    for index in range(6):
        reached = [position for position in range(4 * index, 60) if groups.first(0, position) <= index]
        assert groups.next_free(0, index) == reached[-1] + 1


def _is_in(cached, group, index):
    return (group, index) in cached


@pytest.mark.parametrize(
    "windows", [(1,), (4,), (5,), (12,), (None, 5), (None, 1, 9), (9, 2), (None, None, 6)]
)
def test_the_longest_prefix_is_the_one_of_which_all_that_is_reached_is_cached(windows):
    groups, chance = Groups(windows, 4), random.Random(1)
    for _ in range(200):
        cached = {
            (group, index) for group in range(len(windows)) for index in range(6) if chance.random() < 0.7
        }
        fine = [
            end
            for end in range(7)
            if all(
                (group, index) in cached
                for group in range(len(windows))
                for index in range(groups.first(group, 4 * end), end)
            )
        ]
        assert groups.longest(6, partial(_is_in, cached)) == fine[-1]


def make(num_blocks=8, size=6, slots=0):
    manager = Manager(num_blocks)
    pool = BlockPool(num_blocks)
    tiers = Tiers(pool, MoveCosts(), 4, slots) if slots else None
    manager.core = Allocation(pool, 4, tiers, (size,))
    return manager


def held(manager):
    return manager.core.statistics().blocks_held


def test_a_sequence_gives_back_what_no_step_at_hand_reaches():
    manager = make()
    manager.assign(admit=[(1, range(8))])
    manager.assign(grow=[(1, 9, [8])])
    assert held(manager) == 3, "the ninth token reaches the fourth"
    manager.assign(grow=[(1, 10, [9])], computed=1)
    assert held(manager) == 3, "the step of the ninth may still be computed"
    manager.assign(grow=[(1, 11, [10])], computed=2)
    assert held(manager) == 2
    assert manager.core.statistics().blocks_given_back == 1
    assert manager.assign(freed=[1]).blocks_free == 8


def test_a_sequence_gives_back_while_two_of_its_steps_are_at_hand():
    manager = make()
    manager.assign(admit=[(1, range(8))])
    for length in range(9, 60):
        computed = length - 10
        manager.assign(grow=[(1, length, [length % 7])], computed=computed)
        first = 8 + computed - 1  # of the steps at hand
        reached = range(max(0, first - 6 + 1), length)
        assert held(manager) == len({token // 4 for token in reached}), f"of {length} tokens"


def test_a_long_sequence_goes_on_in_a_small_pool():
    manager = make(num_blocks=4)
    manager.assign(admit=[(1, range(8))])
    for length in range(9, 60):
        assert manager.assign(grow=[(1, length, [length % 7])]).num_grown == 1
        assert held(manager) <= 3


def test_a_new_sequence_begins_where_what_it_reaches_is_cached_though_the_blocks_before_are_gone():
    manager = make(num_blocks=4)
    manager.assign(admit=[(1, range(8))])
    for length in range(9, 25):
        manager.assign(grow=[(1, length, [length - 1])])
    assert manager.assign(freed=[1]).blocks_free == 4
    answer = manager.assign(admit=[(2, [*range(20), 50])])
    assert granted(answer) == [(2, 20, 1)]
    assert held(manager) == 3
    assert len(answer.admitted[0].blocks) == 6
    assert granted(manager.assign(freed=[2], admit=[(3, range(7))])) == [(3, 0, 7)], "the first ones are gone"


def test_what_has_been_given_back_is_found_while_nobody_else_has_it():
    manager = make(num_blocks=16)
    manager.assign(admit=[(1, range(8))])
    for length in range(9, 33):
        manager.assign(grow=[(1, length, [length - 1])])
    assert granted(manager.assign(admit=[(2, [*range(6), 90])])) == [(2, 6, 1)]


def test_what_is_missing_of_what_is_reached_comes_from_the_host():
    manager = make(num_blocks=4, slots=8)
    manager.assign(admit=[(1, range(8))])
    for length in range(9, 14):
        manager.assign(grow=[(1, length, [length - 1])])
    manager.assign(freed=[1], admit=[(2, range(60, 68))])
    answer = manager.assign(freed=[2], admit=[(3, [*range(8), 90])])
    assert granted(answer) == [(3, 8, 1)]
    (table,) = [grant.blocks.tolist() for grant in answer.admitted]
    assert set(answer.moves.restore_blocks.tolist()) <= set(table)
    assert manager.assign(freed=[3]).blocks_free == 4


# Some layers have windows, and others none.


def tables(answer, groups):
    """Each group's blocks of the only sequence that was admitted."""
    (grant,) = answer.admitted
    return [grant.blocks.tolist()[group::groups] for group in range(groups)]


def test_every_group_has_a_block_of_its_own_for_the_same_tokens():
    manager = Manager(num_blocks=12, windows=(None, 6, 6))
    answer = manager.assign(admit=[(1, range(8))])
    assert [len(table) for table in tables(answer, 3)] == [2, 2, 2]
    assert len({block for table in tables(answer, 3) for block in table}) == 6
    answer = manager.assign(grow=[(1, 9, [8])])
    assert (answer.grown_counts.tolist(), len(answer.grown_blocks), answer.blocks_free) == ([3], 3, 3)


def test_only_the_groups_with_a_window_give_back():
    manager = Manager(num_blocks=40, windows=(None, 6))
    manager.assign(admit=[(1, range(8))])
    for length in range(9, 41):
        manager.assign(grow=[(1, length, [length % 7])])
    assert held(manager) == 10 + 2
    assert manager.core.statistics().blocks_given_back == 8
    assert manager.assign(freed=[1]).blocks_free == 40


def test_a_prefix_is_found_as_far_back_as_each_group_needs():
    manager = Manager(num_blocks=40, windows=(None, 6))
    manager.assign(admit=[(1, range(24))])
    manager.assign(freed=[1])
    answer = manager.assign(admit=[(2, [*range(24), 50])])
    assert granted(answer) == [(2, 24, 1)]
    full, windowed = tables(answer, 2)
    assert len(set(full)) == 7
    assert windowed[:4] == [0, 0, 0, 0], "no window reaches those"
    assert held(manager) == 7 + 3


def test_a_prefix_ends_where_a_group_has_lost_it():
    manager = Manager(num_blocks=16, windows=(None, 6))
    manager.assign(admit=[(1, range(8))])
    for length in range(9, 26):
        manager.assign(grow=[(1, length, [length - 1])])
    manager.assign(freed=[1])
    manager.assign(admit=[(2, range(60, 68))])  # in place of what was given back first
    manager.assign(freed=[2])
    answer = manager.assign(admit=[(3, [*range(12), 90])])
    assert granted(answer) == [(3, 0, 13)], "the windows' blocks before the twelfth token are gone"
    manager.assign(freed=[3])


def test_of_a_shared_block_each_group_gets_a_copy():
    manager = Manager(num_blocks=20, windows=(None, 6))
    first = tables(manager.assign(admit=[(1, range(8))]), 2)
    answer = manager.assign(admit=[(2, [*range(6), 90, 91])])
    assert granted(answer) == [(2, 6, 2)]
    full, windowed = tables(answer, 2)
    assert answer.copy_sources.tolist() == [first[0][1], first[1][1]]
    assert answer.copy_destinations.tolist() == [full[1], windowed[1]]


def test_what_one_group_has_yet_to_compute_is_not_copied():
    """The windows' blocks of some tokens were lost, so that one who comes next computes them in both groups; the first
    group's are found as before."""
    manager = Manager(num_blocks=20, windows=(None, 6))
    manager.assign(admit=[(1, range(8))])
    manager.assign(freed=[1])
    pool = manager.core.pool
    pool.forget([block for block, name in pool.named() if not is_of_first_group(name)])
    answer = manager.assign(admit=[(2, range(8)), (3, [*range(3), 80])])
    assert granted(answer) == [(2, 0, 8), (3, 0, 4)], "copies are made before the step computes"
    answer = manager.assign(admit=[(4, [*range(3), 90])])
    assert granted(answer) == [(4, 3, 1)]


def test_a_long_prompt_is_admitted_with_room_for_what_windows_reach_of_it():
    manager = Manager(num_blocks=30, windows=(None, 6, 6))
    whole = manager.assign(admit=[(1, range(64))], budget=8)
    assert not whole.admitted, "48 blocks, if it were computed at once"
    answer = manager.assign(admit=[(1, range(64))], budget=8, chunk_max=8)
    assert granted(answer) == [(1, 0, 8)]
    for length in range(16, 65, 8):
        assert manager.assign(grow=[(1, length, ())], chunk_max=8).num_grown == 1
    assert manager.core.statistics().blocks_given_back


def test_those_who_follow_are_told_of_the_first_group_alone():
    manager, listener = Manager(num_blocks=20, windows=(None, 6)), {}
    manager.core.follow(listener.__setitem__)
    manager.assign(admit=[(1, range(8))])
    assert len(listener) == 2
    assert len(list(manager.core.stored())) == 2


def test_all_give_back_before_any_is_refused():
    manager = Manager(num_blocks=6, windows=(4,))
    manager.assign(admit=[(1, range(4))])
    manager.assign(admit=[(2, range(100, 120))])
    assert manager.assign(grow=[(1, 5, [4]), (2, 21, [120])]).num_grown == 2


def test_a_first_chunk_has_room_whatever_was_said_of_chunks():
    manager = Manager(num_blocks=63, block_size=16, windows=(32,))
    manager.assign(admit=[(1, range(700))])
    answer = manager.assign(admit=[(2, range(1000, 2000))], budget=512, chunk_max=64)
    assert not answer.admitted, "19 blocks are free, and the first chunk takes 32"
    answer = manager.assign(freed=[1], admit=[(2, range(1000, 2000))], budget=512, chunk_max=64)
    assert granted(answer) == [(2, 0, 512)] and len(answer.admitted[0].blocks) == 32


# Some groups hold states of recurrent layers.


def recurrent(num_blocks=40):
    return Manager(num_blocks=num_blocks, windows=(None, 2, 2), num_states=2)


def test_a_prefix_of_which_states_are_cached_ends_where_a_block_does():
    manager = recurrent()
    manager.assign(admit=[(1, range(10))])
    assert granted(manager.assign(admit=[(2, [*range(9), 50])])) == [(2, 8, 2)], "not 9: no state is there"
    manager.assign(freed=[1, 2])
    answer = manager.assign(admit=[(3, [*range(7), 60, 61])])
    assert granted(answer) == [(3, 4, 5)] and not len(answer.copy_sources)
    assert manager.assign(freed=[3]).blocks_free == 40


def test_a_sequence_waits_for_states_of_a_step_that_is_not_over():
    manager = recurrent()
    answer = manager.assign(admit=[(1, range(10)), (2, range(10)), (3, range(60, 64))])
    assert granted(answer) == [(1, 0, 10)], "nobody overtakes who waits"
    assert granted(manager.assign(admit=[(2, range(10)), (3, range(60, 64))])) == [(2, 8, 2), (3, 0, 4)]


def test_there_is_no_hit_where_one_state_was_lost():
    manager = recurrent(num_blocks=18)
    manager.assign(admit=[(1, range(16))], chunk_max=4)
    manager.assign(freed=[1])
    lost = next(block for block, name in manager.core.pool.named() if name == _state_name(range(16), 3, 2))
    manager.core.pool.forget([lost])
    assert granted(manager.assign(admit=[(2, [*range(16), 90])])) == [(2, 12, 5)]


def test_drafts_that_fill_a_block_leave_no_state_in_it_until_they_are_known():
    manager = recurrent()
    manager.assign(admit=[(1, range(6))])
    manager.assign(grow=[(1, 9, [6])], drafts=[2])
    assert granted(manager.assign(admit=[(2, range(9))])) == [(2, 4, 5)]
    manager.assign(grow=[(1, 9, [7, 8])], drafts=[0])
    assert granted(manager.assign(admit=[(3, range(9))])) == [(3, 8, 1)]


def _state_name(tokens, index, group):
    contents, _ = full_blocks(int32(tokens), 4)
    return name_in_group(block_names(root_name(None, (), None, None), contents)[index], group)
