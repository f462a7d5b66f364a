"""No order of operations loses a block, or finds in one what is not there."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test
from msgspec.structs import replace

from pageant.actors.blocks.allocation import Allocation
from pageant.actors.blocks.groups import Groups
from pageant.actors.blocks.pool import BlockPool
from pageant.actors.blocks.store import Store
from pageant.actors.blocks.tiers import Tiers
from pageant.protocol.arrays import int32
from pageant.scripts.samples.random_blocks import SHAPES, RandomBlocks, Shape, run

OFTEN = (
    *("tokens hit", "evictions", "blocks given back", "blocks copied", "growth refused"),
    *("blocks saved", "blocks restored", "blocks spilled", "blocks restored ahead"),
)


SMALL = (Shape(9, 2, (3,), 4, 4), Shape(24, 2, (None, 3), 4, 4))


def test_twenty_thousand_operations_at_random_lose_no_block():
    """`pageant bench blocks` makes a million of them."""
    seen = run(20_000)
    assert seen["operations"] >= 20_000
    assert {what: seen[what] for what in OFTEN if seen[what] < 100} == {}
    assert seen["steps lost"]


def test_hypothesis_finds_no_order_that_does():
    class Machine(RuleBasedStateMachine):
        @initialize(
            shape=st.sampled_from((*SHAPES, *SMALL)),
            seed=st.integers(0, 2**16),
        )
        def begin(self, shape, seed):
            self.blocks = RandomBlocks(seed, shape)

        @rule(
            data=st.data(),
            lengths=st.lists(st.integers(1, 60), max_size=4),
            budget=st.sampled_from([1, 5, 40, 1000]),
        )
        def step(self, data, lengths, budget):
            held = list(self.blocks.held)
            growing = data.draw(st.lists(st.sampled_from(held), unique=True)) if held else []
            self.blocks.exchange(growing, [self.blocks.prompt(length) for length in lengths], budget)

        @rule(data=st.data())
        def end(self, data):
            if self.blocks.held:
                self.blocks.end(data.draw(st.sampled_from(list(self.blocks.held))))

        @rule(length=st.integers(1, 60))
        def lose(self, length):
            self.blocks.exchange([], [self.blocks.prompt(length)], 1000, lost=True)

        @rule(times=st.lists(st.floats(0, 4), min_size=4, max_size=4))
        def measure(self, times):
            self.blocks.measure(*times)

        @rule()
        def check(self):
            self.blocks.check()

        def teardown(self):
            if hasattr(self, "blocks"):
                self.blocks.end_all()

    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=60,
            phases=[Phase.generate],
            stateful_step_count=50,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


def _lose_one(patch):
    free = BlockPool.free
    patch.setattr(BlockPool, "free", lambda self, blocks: free(self, blocks[1:]))


def _evict_without_saving(patch):
    patch.setattr(Tiers, "_save", lambda self, block, name, saves: self.host.put(name) and None)


def _believe_what_was_lost(patch):
    patch.setattr(Tiers, "forget_uncommitted", lambda self: self._uncommitted.clear())


def _spill_to_where_it_is_read(patch):
    patch.setattr(Store, "unpin", lambda self: None)
    patch.setattr(Store, "pin", lambda self, name: self._slots.get(name))


def _give_back_too_much(patch):
    first = Groups.first
    patch.setattr(Groups, "first", lambda self, group, position: first(self, group, position + 9))


def _name_guesses(patch):
    assign = Allocation.assign
    patch.setattr(
        Allocation, "assign", lambda self, request: assign(self, replace(request, grow_drafts=int32()))
    )


BREAKAGES = (
    *(_lose_one, _evict_without_saving, _believe_what_was_lost, _spill_to_where_it_is_read),
    *(_give_back_too_much, _name_guesses),
)


@pytest.mark.parametrize("breakage", BREAKAGES)
def test_what_is_wrong_is_noticed(breakage, monkeypatch):
    breakage(monkeypatch)
    with pytest.raises((AssertionError, KeyError, IndexError)):
        run(90_000)
