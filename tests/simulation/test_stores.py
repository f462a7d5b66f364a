"""Engines with stores, prompts computed apart, and moves: bugs that are put in are caught."""

from __future__ import annotations

import itertools
from random import Random

from pageant.actors.blocks.stored import StoredBlocks
from pageant.actors.executor.simulated import SimulatedExecutor
from pageant.actors.executor.tiers.stored_memory import StoredMemory
from pageant.actors.frontend.moving import Moving
from pageant.actors.store.index import StoreIndex
from pageant.protocol import arena
from pageant.protocol.arena import Arena
from pageant.scripts.simulate.engine import EngineSimulation
from pageant.scripts.simulate.replicas import draw_count, draw_prefills
from pageant.scripts.simulate.runs import run_seed
from pageant.scripts.simulate.stores import STORE, draw_store, draw_stores
from pageant.scripts.simulate.topology import draw_engine

SEEDS_MAX = 200


def has_store(seed: int) -> bool:
    return bool(draw_store(seed, is_replicated=True))


def has_kinds(seed: int) -> bool:
    return has_store(seed) and bool(draw_prefills(seed, draw_count(seed, always=True)))


def caught_by(first: int = 0, suits=has_store) -> str:
    """Return the violation of the first seed from `first` on that suits and has one."""
    seeds = (seed for seed in range(first, first + SEEDS_MAX) if suits(seed))
    found = (run_seed(seed, replicas=True).violation for seed in seeds)
    return next(violation for violation in found if violation is not None)


def test_most_seeds_with_replicas_have_a_store_and_many_compute_prompts_apart():
    seeds = range(300)
    assert 0.55 <= sum(map(has_store, seeds)) / len(seeds) <= 0.75
    assert 0.25 <= sum(map(has_kinds, seeds)) / len(seeds) <= 0.5
    assert 0.05 <= sum(draw_store(seed, is_replicated=False) > 0 for seed in seeds) / len(seeds) <= 0.2
    drawn = [draw_stores(seed, draw_count(seed, always=True)) for seed in seeds]
    assert 0.2 <= sum(len(one.names) == 2 for one in drawn) / len(seeds) <= 0.4
    assert {one.names for one in drawn} == {(), (STORE,), (f"{STORE}/0", f"{STORE}/1")}
    first = next(filter(has_store, seeds))
    homes = draw_engine(Random(0), first, replicas=True).homes
    assert {*drawn[first].names} <= homes.keys()


def test_the_same_seed_with_a_store_is_the_same_run():
    seed = next(
        seed for seed in range(100) if has_kinds(seed) and EngineSimulation(seed, replicas=True).faults
    )
    once, twice = run_seed(seed, replicas=True), run_seed(seed, replicas=True)
    assert once.digest == twice.digest and once.violation is None


# Bugs that are put in.


def test_a_restore_that_checks_neither_name_nor_generation(monkeypatch):
    """A slot that was reused under its reader passes for the block that was there."""
    monkeypatch.setattr(
        Arena, "holds", lambda self, slot, name, generation, state: self.header(slot)["state"][0] == state
    )
    monkeypatch.setattr(arena, "_mixed", lambda generation: 0)
    assert "holds another's content" in caught_by()


def test_a_restore_that_takes_no_checksums(monkeypatch):
    """A block that was spoilt is used."""
    monkeypatch.setattr(StoredMemory, "_fits", lambda self, arena, slot, sums: True)
    assert "holds another's content" in caught_by()


def test_a_block_that_is_visible_before_all_ranks_have_written_it(monkeypatch):
    ask_all = SimulatedExecutor._ask_all

    async def hasty(self, requests):
        if not requests or type(requests[0]).__name__ != "MoveShares" or requests[0].move.way != "save":
            return await ask_all(self, requests)
        self.spawn(ask_all(self, requests))
        return []

    monkeypatch.setattr(SimulatedExecutor, "_ask_all", hasty)
    assert "some rank has not written its part" in caught_by()


def test_a_block_that_is_saved_before_it_is_computed(monkeypatch):
    begin = StoredBlocks.begin_save

    def hasty(self, *args):
        save = begin(self, *args)
        save.step = 0
        return save

    monkeypatch.setattr(StoredBlocks, "begin_save", hasty)
    violation = caught_by()
    assert any(text in violation for text in ("the right ones are", "holds another's content"))


def test_blocks_that_are_restored_to_the_places_of_others(monkeypatch):
    end = StoredBlocks.end_arrival

    def shifted(self, arrival, ok, **how):
        arrival.blocks = arrival.blocks[1:] + arrival.blocks[:1]
        end(self, arrival, ok, **how)

    monkeypatch.setattr(StoredBlocks, "end_arrival", shifted)
    assert "the right ones are" in caught_by()


def test_a_pin_that_is_never_released(monkeypatch):
    release, calls = StoreIndex._release, itertools.count(1)

    def forgetful(self, slot, owner):
        if next(calls) % 10:
            release(self, slot, owner)

    monkeypatch.setattr(StoreIndex, "_release", forgetful)
    assert "pinned slots of store" in caught_by()


def test_reservations_of_a_dead_block_manager_that_stay(monkeypatch):
    monkeypatch.setattr(StoreIndex, "owner_gone", lambda self, owner: None)
    assert "slots of store" in caught_by()


def test_a_request_that_is_refused_for_good_while_copies_hold_the_blocks(monkeypatch):
    """A request that fits once they have ended."""
    monkeypatch.setattr(StoredBlocks, "awaits_room", lambda self: False)
    assert "the KV-block manager refuses" in caught_by(first=210)


def test_a_request_that_is_lost_while_it_is_handed_over(monkeypatch):
    handed_over, calls = Moving.handed_over, itertools.count(1)

    def lossy(self, names, peers):
        handed_over(self, [name for name in names if next(calls) % 5], peers)

    monkeypatch.setattr(Moving, "handed_over", lossy)
    violation = caught_by(first=11, suits=has_kinds)
    assert any(text in violation for text in ("never ended", "do not come to rest", "did not answer"))
