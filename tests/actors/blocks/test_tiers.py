"""Blocks that are evicted from the device come back from the host."""

from __future__ import annotations

import pytest

from pageant.actors.blocks import tiers as module
from pageant.actors.blocks.allocation import Allocation
from pageant.actors.blocks.costs import Move, MoveCosts
from pageant.actors.blocks.pool import BlockPool
from pageant.actors.blocks.tiers import Tiers
from pageant.protocol.tiers import DISK, Moved
from tests.actors.blocks.test_allocation import Manager, copies, granted


@pytest.fixture(autouse=True)
def nothing_is_saved_ahead(monkeypatch):
    monkeypatch.setattr(module, "RESERVE", 0)


def make(num_blocks=4, slots=16, disk=0):
    manager = Manager(num_blocks)
    pool = BlockPool(num_blocks)
    manager.core = Allocation(pool, 4, Tiers(pool, MoveCosts(), 4, slots, disk))
    return manager


def saves(answer):
    moves = answer.moves
    return list(zip(moves.save_blocks.tolist(), moves.save_slots.tolist(), strict=True)) if moves else []


def restores(answer):
    moves = answer.moves
    return (
        list(zip(moves.restore_slots.tolist(), moves.restore_blocks.tolist(), strict=True)) if moves else []
    )


def host(manager):
    (statistics,) = manager.core.statistics().tiers
    return statistics


def test_nothing_is_found_after_a_reset_and_whoever_runs_keeps_its_blocks():
    for below in (False, True):
        manager = make()
        manager.assign(admit=[(1, range(12))])
        manager.assign(freed=[1], admit=[(2, range(20, 36))])
        running = manager.core.statistics().blocks_held
        assert manager.core.forget_prefixes(below=below) == (4, 3 if below else 0)
        manager.core.check_integrity()
        assert manager.core.statistics().blocks_held == running == 4
        assert host(manager).blocks_used == (0 if below else 3)
        back = manager.assign(freed=[2], admit=[(3, range(13))])
        assert granted(back) == [(3, 0, 13) if below else (3, 12, 1)]
        again = manager.assign(freed=[3], admit=[(4, range(20, 36))])
        assert again.admitted[0].num_cached_tokens == 0


def test_what_is_evicted_is_saved_in_the_same_plan_and_restored_when_it_is_wanted():
    manager = make()
    first = manager.assign(admit=[(1, range(12))])
    assert first.moves is None
    blocks = first.admitted[0].blocks.tolist()
    away = manager.assign(freed=[1], admit=[(2, range(20, 36))])
    slots = dict(saves(away))
    assert sorted(slots) == sorted(blocks)
    assert away.moves.num_urgent == 3
    back = manager.assign(freed=[2], admit=[(3, range(13))])
    assert granted(back) == [(3, 12, 1)]
    assert back.admitted[0].num_restored_tokens == 12
    new = back.admitted[0].blocks.tolist()
    assert restores(back) == [(slots[block], new[index]) for index, block in enumerate(blocks)]
    found = host(manager)
    assert (found.blocks_restored, found.tokens_hit, found.num_blocks) == (3, 12, 16)
    assert manager.core.statistics().tokens_hit == 12


def test_what_was_restored_is_shared_by_others_and_not_saved_again():
    manager = make(num_blocks=6)
    manager.assign(admit=[(1, range(8))])
    manager.assign(freed=[1], admit=[(2, range(20, 44))])
    back = manager.assign(freed=[2], admit=[(3, range(9)), (4, range(9))])
    assert granted(back) == [(3, 8, 1), (4, 8, 1)]
    assert len(restores(back)) == 2
    again = manager.assign(freed=[3, 4], admit=[(5, range(50, 74))])
    restored = {block for _, block in restores(back)}
    assert restored <= set(again.admitted[0].blocks.tolist())
    assert restored.isdisjoint(block for block, _ in saves(again)), "they lie below already"


def test_a_preempted_sequence_gets_its_partly_filled_last_block_back():
    manager = make()
    manager.assign(admit=[(1, range(6))])
    manager.assign(grow=[(1, 7, [6])])
    manager.assign(learn=[(1, [7])], freed=[1], admit=[(2, range(20, 36))])
    back = manager.assign(freed=[2], admit=[(1, range(8))])
    assert granted(back) == [(1, 7, 1)]
    assert back.admitted[0].num_restored_tokens == 7
    assert [block for _, block in restores(back)] == back.admitted[0].blocks.tolist()


def test_on_the_device_more_of_a_block_may_be_found_than_below():
    manager = make(num_blocks=8)
    manager.assign(admit=[(1, range(6))])
    manager.assign(freed=[1], admit=[(2, range(20, 52))])
    (running,) = manager.assign(freed=[2], admit=[(3, range(7))]).admitted
    assert running.num_restored_tokens == 6
    answer = manager.assign(admit=[(4, range(8))])
    assert granted(answer) == [(4, 7, 1)]
    assert copies(answer) == [(running.blocks[1], answer.admitted[0].blocks[1])]


def test_what_costs_less_to_compute_is_neither_restored_nor_saved():
    manager = make()
    manager.assign(admit=[(1, range(12))])
    away = manager.assign(freed=[1], admit=[(2, range(20, 36))])
    assert len(saves(away)) == 3
    costs = manager.core.tiers.costs
    costs.stepped(100, 0.1)
    costs.moved(Move.HOST, Moved(blocks=1, seconds=0.005))  # a block's tokens take four milliseconds
    back = manager.assign(freed=[2], admit=[(3, range(13))])
    assert granted(back) == [(3, 0, 13)]
    assert back.moves is None


def test_what_is_saved_in_time_costs_half_as_much_as_what_a_step_waits_for(monkeypatch):
    monkeypatch.setattr(module, "RESERVE", 100)
    manager = make(num_blocks=8)
    costs = manager.core.tiers.costs
    costs.stepped(100, 0.1)
    costs.moved(Move.HOST, Moved(blocks=1, seconds=0.003))
    manager.assign(admit=[(1, range(24))])
    answer = manager.assign(freed=[1], admit=[(2, range(50, 52))])
    assert answer.moves.num_urgent == 0
    assert len(saves(answer)) == 1, "so that two blocks can be had at once"
    answer = manager.assign(freed=[2], admit=[(3, range(60, 92))])
    assert answer.moves is None, "there and back a block takes longer than its tokens do"


def test_blocks_that_are_next_in_line_are_saved_ahead(monkeypatch):
    monkeypatch.setattr(module, "RESERVE", 2)
    manager = make(num_blocks=8)
    (first,) = manager.assign(admit=[(1, range(28))]).admitted
    answer = manager.assign(freed=[1], admit=[(2, range(50, 54))])
    assert [block for block, _ in saves(answer)] == first.blocks[:-3:-1].tolist(), "its last ones"
    assert answer.moves.num_urgent == 0
    answer = manager.assign(grow=[(2, 5, [54])])
    assert answer.moves.num_urgent == 0
    assert len(saves(answer)) == 1


def test_with_nothing_granted_nothing_is_moved(monkeypatch):
    monkeypatch.setattr(module, "RESERVE", 100)
    manager = make()
    manager.assign(admit=[(1, range(12))])
    assert manager.assign(freed=[1]).moves is None
    assert manager.assign(admit=[(2, [7])]).moves is not None


def test_what_a_dead_schedulers_last_steps_moved_is_not_trusted():
    manager = make()
    manager.assign(admit=[(1, range(12))])
    manager.assign(freed=[1], admit=[(2, range(20, 36))])
    manager.core.release_all()
    answer = manager.assign(admit=[(3, range(13))])
    assert granted(answer) == [(3, 0, 13)]
    assert len(manager.core.tiers.host) == 0


def test_a_refused_admission_leaves_what_lies_below_as_it_was():
    manager = make()
    manager.assign(admit=[(1, range(12))])
    manager.assign(freed=[1], admit=[(2, range(20, 32))])
    refused = manager.assign(admit=[(3, range(13))])
    assert granted(refused) == []
    assert refused.moves is None
    assert granted(manager.assign(freed=[2], admit=[(3, range(13))])) == [(3, 12, 1)]


def test_slots_that_are_read_in_an_exchange_are_not_written_in_it():
    manager = make(num_blocks=4, slots=3)
    manager.assign(admit=[(1, range(12))])
    manager.assign(freed=[1], admit=[(2, range(20, 36))])
    answer = manager.assign(freed=[2], admit=[(3, range(13))])
    assert len(restores(answer)) == 3
    assert saves(answer) == [], "there is no slot to save to"


def test_no_block_is_restored_that_the_same_plan_copies_from():
    """Leave one block to be had, which is the one that is copied from."""
    manager = make(num_blocks=4)
    manager.assign(admit=[(1, range(4))])
    manager.assign(freed=[1], admit=[(2, range(20, 36))])  # the first is below now
    manager.assign(freed=[2], admit=[(3, [50, 51, 52]), (4, range(60, 68))])
    manager.assign(freed=[3])
    answer = manager.assign(admit=[(5, [50, 51, 9]), (6, [0, 1, 2, 3, 9])])
    sources = {source for source, _ in copies(answer)}
    assert sources
    assert sources.isdisjoint(block for _, block in restores(answer))


def test_what_the_host_has_no_room_for_goes_to_the_disk_in_time_and_comes_back_from_there(monkeypatch):
    monkeypatch.setattr(module, "RESERVE", 100)
    manager = make(num_blocks=8, slots=4, disk=16)
    spilled, read = [], []
    for serial in range(1, 12):
        start = 100 * (serial % 4)
        (grant,) = (answer := manager.assign(admit=[(serial, range(start, start + 9))])).admitted
        read += [slot for slot, _ in restores(answer) if slot >= DISK]
        assert grant.num_restored_tokens == 4 * len(restores(answer))
        grown = [manager.assign(grow=[(serial, length, [7])]) for length in range(9, 15)]
        spilled += [slot for one in (answer, *grown) if one.moves for slot in one.moves.spill_to.tolist()]
        manager.assign(freed=[serial])
    assert all(slot >= DISK for slot in spilled)
    assert read, "what the host has no room for any more"
    _, disk = manager.core.statistics().tiers
    assert (disk.blocks_saved, disk.blocks_restored) == (len(spilled), len(read))
    assert disk.tokens_hit == 4 * len(read)


def test_what_would_hold_up_others_is_restored_beside_the_steps_before():
    manager = make(num_blocks=16)
    manager.assign(admit=[(1, range(32))])
    manager.assign(freed=[1], admit=[(2, range(100, 164))])
    manager.assign(freed=[2], admit=[(3, range(200, 204))])
    costs = manager.core.tiers.costs
    costs.stepped(8, 0.008)
    costs.moved(
        Move.HOST, Moved(blocks=20, seconds=0.06)
    )  # three milliseconds each; a block's tokens take four
    waiting = [(4, range(33))]
    counts, length = [], 4
    while not (answer := manager.assign(grow=[(3, length, [])], admit=waiting)).admitted:
        moves = answer.moves
        counts.append(len(restores(answer)))
        assert moves.num_needed == 0, "nobody waits for them"
        length += 1
    assert counts, "while others run"
    (grant,) = answer.admitted
    assert grant.num_cached_tokens == 32
    needed = len(restores(answer))
    assert grant.num_restored_tokens == 4 * needed
    assert sum(counts) + needed == 8
    assert manager.core.statistics().blocks_restored_ahead == sum(counts)


def test_where_nobody_else_runs_all_is_restored_at_once():
    manager = make(num_blocks=16)
    manager.assign(admit=[(1, range(32))])
    manager.assign(freed=[1], admit=[(2, range(100, 164))])
    costs = manager.core.tiers.costs
    costs.stepped(8, 0.008)
    costs.moved(Move.HOST, Moved(blocks=20, seconds=0.06))
    (grant,) = manager.assign(freed=[2], admit=[(4, range(33))]).admitted
    assert grant.num_restored_tokens == 32


def test_what_is_copied_from_is_not_restored_into_before_its_step_is_computed():
    """The copy is made when its step is; what the next plan restores may be there before."""
    manager = make(num_blocks=4)
    manager.assign(admit=[(1, range(4))])
    manager.assign(freed=[1], admit=[(2, range(20, 36))])  # the first is below now
    manager.assign(freed=[2], admit=[(3, [50, 51, 52]), (4, range(60, 64))])
    manager.assign(freed=[3])
    copying = manager.assign(admit=[(5, [50, 51, 9])])
    ((source, _),) = copies(copying)
    answer = manager.assign(admit=[(6, [0, 1, 2, 3, 9])], computed=manager.steps - 2)
    assert answer.admitted
    assert source not in [block for _, block in restores(answer)]
