"""The shell: whose pool it is, and whose sequences."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from pageant.actors.blocks.actor import BlockManager
from pageant.protocol.allocation import Admission, Assign, Assigned, GetPoolStatistics, PoolReady
from pageant.protocol.arrays import int32, int64
from pageant.protocol.stepping import ExecutorReady
from pageant.protocol.supervision import ActorDown, ActorUp


@pytest.fixture
def manager():
    actor = BlockManager(BlockManager.Options())
    actor.listener = []
    actor._cell = SimpleNamespace(
        node=SimpleNamespace(tell=lambda address, message, cell: actor.listener.append((address, message))),
        incarnation=2,
        sender="scheduler",
        sender_incarnation=1,
    )
    return actor


def ready(epoch):
    return ExecutorReady(
        epoch=epoch, num_blocks=4, block_size=4, max_num_seqs=4, max_model_len=16, device="", dtype=""
    )


def ask(manager, *, serial=1, epoch=1, incarnation=1, freed=(), meant=0):
    manager._cell.sender_incarnation = incarnation
    manager.listener.clear()
    manager.assign(
        Assign(
            step=3,
            epoch=epoch,
            freed=int64(freed),
            grow_serials=int64(),
            grow_lengths=int32(),
            computed_step=0,
            learned_serials=int64(),
            learned_counts=int32(),
            token_ids=int32(),
            admissions=(Admission(serial=serial, token_ids=int32(range(9))),),
            admission_tokens=100,
            manager=meant,
        )
    )
    answers = [message for _, message in manager.listener if isinstance(message, Assigned)]
    return answers[0] if answers else None


def test_before_there_is_an_executor_everything_is_refused(manager):
    answer = ask(manager)
    assert (answer.step, answer.admitted, answer.num_blocks) == (3, (), 0)
    assert manager.statistics(GetPoolStatistics()).num_blocks == 0


def test_what_was_meant_for_another_manager_is_refused_and_names_nothing(manager):
    manager.executor_ready(ready(1))
    assert ask(manager, meant=1).admitted == (), "for the manager before this one"
    assert ask(manager, serial=2, meant=2).admitted[0].num_cached_tokens == 0


def test_the_scheduler_is_told_of_the_pool_whenever_either_comes_up(manager):
    manager.peer_up(ActorUp(address="scheduler", incarnation=1))
    assert manager.listener == []
    manager.executor_ready(ready(1))
    manager.peer_up(ActorUp(address="scheduler", incarnation=2))
    assert [(address, type(m), m.epoch) for address, m in manager.listener] == [
        ("scheduler", PoolReady, 1)
    ] * 2


def test_a_new_epoch_empties_the_pool_and_the_same_one_does_not(manager):
    manager.executor_ready(ready(1))
    ask(manager)
    manager.executor_ready(ready(1))
    assert manager.statistics(GetPoolStatistics()).blocks_held == 3
    manager.executor_ready(ready(2))
    assert manager.statistics(GetPoolStatistics()).blocks_cached == 0
    assert ask(manager, epoch=1).admitted == (), "of an earlier life's memory nothing is granted"
    assert ask(manager, epoch=2).admitted[0].num_cached_tokens == 0


def test_a_new_scheduler_holds_nothing_of_the_former(manager):
    manager.executor_ready(ready(1))
    ask(manager)
    assert len(ask(manager, serial=1, incarnation=2).admitted) == 1
    assert manager.statistics(GetPoolStatistics()).blocks_held == 3


def test_a_dead_schedulers_blocks_are_free_and_its_late_word_is_passed_over(manager):
    manager.executor_ready(ready(1))
    ask(manager)
    manager.peer_down(ActorDown(address="scheduler", incarnation=1, reason=""))
    assert manager.statistics(GetPoolStatistics()).blocks_held == 0
    assert ask(manager, serial=2, incarnation=1) is None
    assert manager.statistics(GetPoolStatistics()).blocks_held == 0


def test_late_news_of_a_death_takes_nothing_from_the_successor(manager):
    manager.executor_ready(ready(1))
    ask(manager, incarnation=2)
    manager.peer_down(ActorDown(address="scheduler", incarnation=1, reason=""))
    assert manager.statistics(GetPoolStatistics()).blocks_held == 3
