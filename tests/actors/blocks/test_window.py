"""With a window in every layer, a sequence holds what the window reaches, and begins wherever that is cached."""

from __future__ import annotations

import pytest

from pageant.actors.blocks.allocation import Allocation
from pageant.actors.blocks.costs import Costs
from pageant.actors.blocks.pool import BlockPool
from pageant.actors.blocks.tiers import Tiers
from pageant.actors.blocks.window import Window
from tests.actors.blocks.test_allocation import Manager, granted


@pytest.mark.parametrize("size", [1, 2, 4, 5, 9])
def test_the_first_block_is_that_of_the_first_token_which_is_attended_over(size):
    window = Window(size, 4)
    for position in range(30):
        attended = [at for at in range(position + 1) if at > position - size]
        assert window.first_block(position) == attended[0] // 4


@pytest.mark.parametrize("size", [1, 4, 5, 6, 12])
def test_the_longest_prefix_is_the_one_whose_last_blocks_are_cached(size):
    window = Window(size, 4)
    for bits in range(64):
        names = [bytes([index]) for index in range(6)]
        cached = {name for index, name in enumerate(names) if bits >> index & 1}
        ends = [end for end in range(7) if set(names[window.first_block(4 * end) : end]) <= cached]
        assert window.longest(names, cached.__contains__) == (window.first_block(4 * ends[-1]), ends[-1])


def make(num_blocks=8, size=6, slots=0):
    manager = Manager(num_blocks)
    pool = BlockPool(num_blocks)
    tiers = Tiers(pool, Costs(), 4, slots) if slots else None
    manager.core = Allocation(pool, 4, tiers, Window(size, 4))
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
