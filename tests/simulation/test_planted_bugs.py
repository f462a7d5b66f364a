"""Bugs that are put in, one at a time: each is caught within 200 seeds of the configuration that has to hold."""

from __future__ import annotations

import itertools

import msgspec

from pageant.actors.blocks.actor import BlockManager
from pageant.actors.blocks.groups import Groups
from pageant.actors.blocks.pool import BlockPool
from pageant.actors.detokenizer.delivery import Delivery
from pageant.actors.executor import simulated_group
from pageant.actors.executor.simulated import SimulatedExecutor
from pageant.actors.runtime.bonds import Bonds
from pageant.actors.runtime.lives import Life
from pageant.actors.runtime.streams import Arrival, Incoming
from pageant.actors.scheduler.actor import Scheduler
from pageant.actors.scheduler.core import SchedulerCore
from pageant.actors.scheduler.planning import Planner
from pageant.protocol.arrays import int32
from pageant.scripts.simulate.engine import EngineSimulation
from pageant.scripts.simulate.runs import run_seed, shorten

SEEDS_MAX = 200


def caught_by() -> int | None:
    """The first seed with a violation."""
    return next((seed for seed in range(SEEDS_MAX) if run_seed(seed).violation is not None), None)


def every(count: int):
    """True once in so many calls."""
    calls = itertools.count(1)
    return lambda: next(calls) % count == 0


def test_a_lost_unlock(monkeypatch):
    free, now = BlockPool.free, every(50)
    monkeypatch.setattr(BlockPool, "free", lambda self, blocks: free(self, blocks[1:] if now() else blocks))
    assert caught_by() is not None


def test_a_block_freed_twice(monkeypatch):
    free, now = BlockPool.free, every(50)

    def freed(self, blocks):
        free(self, blocks)
        if now() and len(blocks) > 0 and self.references(blocks[0]) > 0:
            free(self, blocks[:1])

    monkeypatch.setattr(BlockPool, "free", freed)
    assert caught_by() is not None


def test_a_dropped_abort(monkeypatch):
    abort, now = SchedulerCore.abort, every(3)
    monkeypatch.setattr(SchedulerCore, "abort", lambda self, message: None if now() else abort(self, message))
    assert caught_by() is not None


def test_a_reused_incarnation(monkeypatch):
    begin = Life.begin

    def begun(self):
        begin(self)
        self.incarnation = max(1, self.incarnation - (self.incarnation > 1))
        return self.incarnation

    monkeypatch.setattr(Life, "begin", begun)
    assert caught_by() is not None


def test_a_lost_terminal_message(monkeypatch):
    add, now = Delivery.add, every(200)

    def added(self, serial, request_id, text, token_ids, finished, *places):
        add(self, serial, request_id, text, token_ids, None if now() else finished, *places)

    monkeypatch.setattr(Delivery, "add", added)
    assert caught_by() is not None


def test_a_stale_epoch(monkeypatch):
    ready = BlockManager.executor_ready

    def kept(self, event):
        allocation = self._allocation
        ready(self, event)
        if allocation is not None:  # what was cached in the former's memory
            allocation.release_all()
            self._allocation = allocation

    monkeypatch.setattr(BlockManager, "executor_ready", kept)
    seed = caught_by()
    assert seed is not None
    found, faults = run_seed(seed).violation, EngineSimulation(seed).faults
    few = shorten(seed)
    assert 1 <= len(few) <= 2 < len(faults) and set(few) <= set(faults)
    assert EngineSimulation(seed, faults=few).run().violation is not None
    assert run_seed(seed).violation == found, "a failing seed fails again in the same route"


def test_blocks_given_back_too_early(monkeypatch):
    first = Groups.first
    monkeypatch.setattr(Groups, "first", lambda self, group, position: first(self, group, position + 8))
    assert caught_by() is not None


def test_a_skipped_gap(monkeypatch):
    arrive = Incoming.arrive

    def arrived(self, number, *rest):
        found = arrive(self, number, *rest)
        if found is Arrival.GAP:
            self.last = number
            return Arrival.NEXT
        return found

    monkeypatch.setattr(Incoming, "arrive", arrived)
    assert caught_by() is not None


def test_an_order_taken_from_a_set(monkeypatch):
    choose = Planner._choose_waiting
    monkeypatch.setattr(Planner, "_choose_waiting", lambda self, budget: list(set(choose(self, budget))))
    assert any(run_seed(seed).digest != run_seed(seed).digest for seed in range(SEEDS_MAX))


def test_a_handler_that_raises(monkeypatch):
    stepped, now = Scheduler.stepped, every(500)

    def raising(self, message):
        if now():
            raise KeyError("planted")
        return stepped(self, message)

    monkeypatch.setattr(Scheduler, "stepped", raising)
    assert caught_by() is not None


def test_a_member_of_a_group_that_makes_no_copies(monkeypatch):
    follow = simulated_group._follow
    empty = int32()

    def followed(runner, step, token_ids):
        copies = {"copy_sources": empty, "copy_destinations": empty}
        return follow(runner, msgspec.structs.replace(step, **copies), token_ids)

    monkeypatch.setattr(simulated_group, "_follow", followed)
    assert caught_by() is not None


def test_a_member_of_a_group_that_skips_a_step(monkeypatch):
    write, now = simulated_group.SimulatedRunner.write, every(40)

    def written(self, packed, token_ids, adapted):
        if isinstance(self, simulated_group.SimulatedLeader) or not now():
            write(self, packed, token_ids, adapted)

    monkeypatch.setattr(simulated_group.SimulatedRunner, "write", written)
    assert caught_by() is not None


def test_members_of_a_group_that_are_told_other_tokens(monkeypatch):
    """A leader that says a launch's tokens before they are drawn does so."""
    compute, now = simulated_group.SimulatedMeeting.compute, every(40)

    def computed(self, number, place, token_ids):
        return compute(self, number, place, token_ids - 1 if now() else token_ids)

    monkeypatch.setattr(simulated_group.SimulatedMeeting, "compute", computed)
    assert caught_by() is not None


def test_a_member_of_a_group_that_skips_a_void(monkeypatch):
    """Leave it at a launch that the leader has left: it takes what is said of the next for that."""
    end, now = simulated_group.SimulatedFollower.end, every(3)

    def ended(self, number, place):
        if not now():
            end(self, number, place)

    monkeypatch.setattr(simulated_group.SimulatedFollower, "end", ended)
    assert caught_by() is not None


def test_a_leader_that_orders_a_launch_after_it(monkeypatch):
    """Have the others wait for the order, and the leader, which computes, for them."""
    launch, order = SimulatedExecutor._launch, SimulatedExecutor._order

    async def launched(self, instruction):
        await launch(self, instruction)
        order(self, instruction.work)

    monkeypatch.setattr(SimulatedExecutor, "_launch", launched)
    monkeypatch.setattr(SimulatedExecutor, "_order", lambda self, work: None)
    assert caught_by() is not None


def test_members_of_a_group_that_begin_under_incarnations_of_their_own(monkeypatch):
    def begun(self, members):
        for index, member in enumerate(members):
            member.incarnation += index
            member.begin()

    monkeypatch.setattr(Bonds, "_begin", begun)
    assert caught_by() is not None
